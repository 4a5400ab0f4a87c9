"""Transactions: prepared, ended by the producer or by the broker's question; requests and replies."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from commitlog.record import Message as StoredMessage
from commitlog.record import encode_record
from ledgermq.client import (
    Message,
    MessageQueue,
    Producer,
    ReceivedMessage,
    SendResult,
    TransactionListener,
    TransactionOutcome,
    UncertainError,
    WrongMessageError,
)
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.headers.send import SendMessageRequestHeader
from remoting.headers.transactions import CheckTransactionStateRequestHeader, EndTransactionRequestHeader
from remoting.record import format_properties, parse_properties
from tests.support.polling import until
from tests.unit.ledgermq.client.fake_cluster import CLUSTER, TOPIC, FakeCluster, FakeLeader, running

END = RequestCode.END_TRANSACTION


class Listener:
    """Does its work as it is said to."""

    def __init__(self, outcome: TransactionOutcome) -> None:
        self.outcome = outcome
        self.checked: list[ReceivedMessage] = []

    async def execute(self, message: Message, result: SendResult) -> TransactionOutcome:
        return self.outcome

    async def check(self, message: ReceivedMessage) -> TransactionOutcome:
        self.checked.append(message)
        return self.outcome


@asynccontextmanager
async def producing(
    listener: TransactionListener | None = None,
) -> AsyncIterator[tuple[FakeLeader, Producer]]:
    async with (
        running(FakeCluster()) as cluster,
        Producer(cluster.namesrv, group="shop", transaction_listener=listener) as producer,
    ):
        yield cluster.brokers["broker-a"], producer


def endings(broker: FakeLeader) -> list[EndTransactionRequestHeader]:
    return [EndTransactionRequestHeader.parse(each.ext_fields) for each in broker.of(END)]


async def test_the_end_of_the_block_commits_and_an_error_rolls_back() -> None:
    async with producing() as (broker, producer):
        async with await producer.transaction(Message(TOPIC, b"m")) as transaction:
            assert endings(broker) == []
        with pytest.raises(KeyError):
            async with await producer.transaction(Message(TOPIC, b"n")):
                raise KeyError
        async with await producer.transaction(Message(TOPIC, b"o")) as third:
            await third.rollback()
    committed, *rolled_back = endings(broker)
    assert (committed.commit_or_rollback, committed.producer_group) == (TransactionOutcome.COMMIT, "shop")
    assert committed.transaction_id == transaction.result.message_id
    assert {each.commit_or_rollback for each in rolled_back} == {TransactionOutcome.ROLLBACK}
    assert len(rolled_back) == 2
    half = broker.kept[0]
    properties = parse_properties(half.header.properties.encode())  # type: ignore[union-attr]
    assert (properties["TRAN_MSG"], properties["PGROUP"], half.header.sys_flag) == ("true", "shop", 4)


async def test_brokers_know_the_group_before_the_first_transaction() -> None:
    async with producing() as (broker, producer):
        await producer.transaction(Message(TOPIC, b"m"))
    codes = [each.code for each in broker.requests]
    assert codes.index(RequestCode.HEART_BEAT) < codes.index(RequestCode.SEND_MESSAGE_V2)
    assert codes[-1] == RequestCode.UNREGISTER_CLIENT
    assert b'"groupName":"shop"' in broker.of(RequestCode.HEART_BEAT)[0].body


@pytest.mark.parametrize("outcome", list(TransactionOutcome))
async def test_the_listener_says_how_a_transaction_ends(outcome: TransactionOutcome) -> None:
    async with producing(Listener(outcome)) as (broker, producer):
        _, said = await producer.send_in_transaction(Message(TOPIC, b"m"))
        ended = [each.commit_or_rollback for each in endings(broker)]
    assert said is outcome
    assert ended == ([outcome] if outcome is not TransactionOutcome.UNKNOWN else [])


async def test_a_check_is_answered_at_the_leader_with_the_numbers_of_the_question() -> None:
    listener = Listener(TransactionOutcome.COMMIT)
    async with producing(listener) as (broker, producer):
        await producer.transaction(Message(TOPIC, b"m"))
        properties = format_properties({"UNIQ_KEY": "K1", "PGROUP": "shop"})
        body = encode_record(StoredMessage(TOPIC, 0, b"m", properties), 5, 4711)
        header = CheckTransactionStateRequestHeader(6, 4800, msg_id="K1", transaction_id="K1")
        question = RemotingCommand(
            RequestCode.CHECK_TRANSACTION_STATE, ext_fields=header.ext_fields(), body=body
        )
        next(iter(broker.connections)).send_oneway(question)
        await until(lambda: broker.of(END))
    (ending,) = endings(broker)
    assert ending.from_transaction_check
    assert (ending.queue_offset, ending.position, ending.msg_id) == (6, 4800, "K1")
    assert [(each.message_id, each.body) for each in listener.checked] == [("K1", b"m")]


async def test_a_question_that_cannot_be_read_ends_nothing() -> None:
    async with producing(Listener(TransactionOutcome.COMMIT)) as (broker, producer):
        await producer.transaction(Message(TOPIC, b"m"))
        connection = next(iter(broker.connections))
        for body in (b"", b"\0" * 50):
            connection.send_oneway(RemotingCommand(RequestCode.CHECK_TRANSACTION_STATE, body=body))
        await connection.request(RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO))
        assert endings(broker) == []


def properties_of(request: RemotingCommand) -> dict[str, str]:
    return parse_properties(SendMessageRequestHeader.parse(request.ext_fields).properties.encode())


def request_in(broker: FakeLeader) -> dict[str, str]:
    return properties_of(broker.of(RequestCode.SEND_MESSAGE_V2)[-1])


async def test_a_reply_ends_the_request_that_it_answers() -> None:
    async with producing() as (broker, producer):
        asking = asyncio.ensure_future(producer.request(Message(TOPIC, b"question"), timeout_s=5.0))
        await until(lambda: broker.of(RequestCode.SEND_MESSAGE_V2))
        properties = request_in(broker)
        text = format_properties({**properties, "MSG_TYPE": "reply"}).decode()
        fields = {"topic": f"{CLUSTER}_REPLY_TOPIC", "properties": text, "queueId": "0"}
        push = RemotingCommand(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext_fields=fields, body=b"the answer"
        )
        answer = await next(iter(broker.connections)).request(push)
        late = await next(iter(broker.connections)).request(push)
        assert (await asking).body == b"the answer"
    assert (answer.code, late.code) == (0, 0)
    assert properties["REPLY_TO_CLIENT"]
    assert properties["TTL"] == "5000"


async def test_a_request_without_a_reply_ends_in_time() -> None:
    async with producing() as (_, producer):
        with pytest.raises(UncertainError, match="no reply"):
            await producer.request(Message(TOPIC, b"question"), timeout_s=0.05)


async def test_a_reply_goes_to_the_topic_of_the_cluster_with_what_names_the_request() -> None:
    kept = {"CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": "client-1", "TTL": "3000"}
    async with producing() as (broker, producer):
        await producer.reply(received({**kept, "CLUSTER": CLUSTER}), b"the answer")
        with pytest.raises(WrongMessageError, match="expects no reply"):
            await producer.reply(received({}), b"the answer")
    (sent,) = broker.of(RequestCode.SEND_REPLY_MESSAGE_V2)
    assert (SendMessageRequestHeader.parse(sent.ext_fields).topic, sent.body) == (
        f"{CLUSTER}_REPLY_TOPIC",
        b"the answer",
    )
    properties = properties_of(sent)
    assert properties.items() >= {**kept, "MSG_TYPE": "reply"}.items()


def received(properties: dict[str, str]) -> ReceivedMessage:
    queue = MessageQueue(TOPIC, "broker-a", 0)
    return ReceivedMessage(
        TOPIC, b"question", queue, 0, 0, "K1", "", None, (), properties, 0, 0, 0, "127.0.0.1:1", 0
    )
