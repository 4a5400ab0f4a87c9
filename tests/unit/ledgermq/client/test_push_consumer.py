"""The push consumer against brokers in memory, by what RocketMQ's own push consumer does."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from ledgermq.client import (
    AtTime,
    ClosedError,
    DeadLetter,
    NotSentError,
    PullLimits,
    PushConsumer,
    ReceivedMessage,
    RefusedError,
    RetryLater,
    Sql,
    Where,
    WrongSubscriptionError,
    push_consumer,
)
from ledgermq.client.handling import Handler
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.connection import Connection
from remoting.fastjson import loads
from remoting.headers.send import SendMessageRequestHeader
from remoting.record import tags_code
from tests.support.polling import loop_turns, until
from tests.unit.ledgermq.client.fake_cluster import close_connection
from tests.unit.ledgermq.client.fake_queues import GROUP, TOPIC, FakeBroker, FakeGroup

CLIENT = Path(push_consumer.__file__).parent
RETRY = f"%RETRY%{GROUP}"
DEAD = f"%DLQ%{GROUP}"


class Seen:
    """An async handler that keeps what it gets, and fails with what `failures` has for the body."""

    def __init__(self, **failures: Exception) -> None:
        self.messages: list[ReceivedMessage] = []
        self.failures = failures

    async def __call__(self, message: ReceivedMessage) -> None:
        self.messages.append(message)
        failure = self.failures.get(message.body.decode())
        if failure is not None:
            raise failure

    @property
    def bodies(self) -> list[bytes]:
        return [each.body for each in self.messages]


@asynccontextmanager
async def consuming(group: FakeGroup, handler: Handler, **options: Any) -> AsyncIterator[PushConsumer]:
    options.setdefault("topics", TOPIC)
    options.setdefault("consume_from", Where.BEGINNING)
    options.setdefault("commit_interval_s", 0.01)
    async with group.running(), PushConsumer(group.namesrv, handler, group=GROUP, **options) as consumer:
        yield consumer


# -- consume


async def test_each_message_comes_once_and_its_offset_is_committed() -> None:
    group, seen = FakeGroup(queues=2), Seen()
    for number in range(10):
        group.broker.put(b"%d" % number, number % 2)
    async with consuming(group, seen):
        await until(lambda: len(seen.messages) == 10)
    assert sorted(seen.bodies) == [b"%d" % number for number in range(10)]
    assert (group.broker.stored(0), group.broker.stored(1)) == (5, 5)
    assert group.broker.clients == {}


async def test_a_group_goes_on_at_its_stored_offset() -> None:
    group, seen = FakeGroup(queues=1), Seen()
    for number in range(5):
        group.broker.put(b"%d" % number)
    group.broker.offsets[GROUP, TOPIC, 0] = 3
    async with consuming(group, seen):
        await until(lambda: len(seen.messages) == 2)
    assert seen.bodies == [b"3", b"4"]


@pytest.mark.parametrize(
    ("consume_from", "first"), [(Where.BEGINNING, b"0"), (Where.END, b"new"), (AtTime(2000), b"2")]
)
async def test_a_new_group_begins_at_first_last_or_timestamp(consume_from: Where, first: bytes) -> None:
    group, seen = FakeGroup(queues=1), Seen()
    for number in range(4):
        group.broker.put(b"%d" % number)
    async with consuming(group, seen, consume_from=consume_from):
        await until(lambda: any(each.ext_fields["topic"] == TOPIC for each in pulls(group.broker)))
        group.broker.put(b"new")
        await until(lambda: b"new" in seen.bodies)
    assert min(seen.messages, key=lambda each: each.queue_offset).body == first


def pulls(broker: FakeBroker) -> list[RemotingCommand]:
    return broker.of(RequestCode.PULL_MESSAGE)


async def test_a_blocking_handler_runs_in_threads_that_end_with_the_consumer() -> None:
    group = FakeGroup(queues=1)
    together = threading.Barrier(3)
    names: list[str] = []

    def handle(message: ReceivedMessage) -> None:
        together.wait(20)
        names.append(threading.current_thread().name)

    for number in range(3):
        group.broker.put(b"%d" % number)
    async with consuming(group, handle, concurrency=3):
        await until(lambda: len(names) == 3)
    assert all(name.startswith("ledgermq-handler") for name in names)
    assert not [each for each in threading.enumerate() if each.name.startswith("ledgermq-handler")]
    assert group.broker.stored() == 3


async def test_no_more_handlers_run_at_once_than_concurrency_says() -> None:
    group, release = FakeGroup(queues=2), asyncio.Event()
    running: list[ReceivedMessage] = []

    async def handle(message: ReceivedMessage) -> None:
        running.append(message)
        await release.wait()

    for number in range(8):
        group.broker.put(b"%d" % number, number % 2)
    async with consuming(group, handle, concurrency=3):
        await until(lambda: len(running) == 3)
        await loop_turns()
        assert len(running) == 3
        release.set()
        await until(lambda: len(running) == 8)


async def test_an_unfinished_message_keeps_the_offset_however_many_after_it_are_done() -> None:
    group, release, done = FakeGroup(queues=1), asyncio.Event(), Seen()

    async def handle(message: ReceivedMessage) -> None:
        if message.body == b"1":
            await release.wait()
        await done(message)

    for number in range(5):
        group.broker.put(b"%d" % number)
    async with consuming(group, handle):
        await until(lambda: len(done.messages) == 4 and group.broker.stored() == 1)
        await loop_turns()
        assert group.broker.stored() == 1
        release.set()
        await until(lambda: group.broker.stored() == 5)


async def test_pulls_wait_while_too_many_messages_are_not_finished() -> None:
    group, release = FakeGroup(queues=1), asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        await release.wait()

    group.topics = {TOPIC: 1}
    for number in range(100):
        group.broker.put(b"%d" % number)
    async with consuming(group, handle, limits=PullLimits(messages=40)) as consumer:
        await until(lambda: len(pulls(group.broker)) == 2)
        await loop_turns()
        assert len(pulls(group.broker)) == 2
        release.set()
        await until(lambda: group.broker.stored() == 100)
    assert consumer


# -- filters


async def test_tags_are_compared_by_the_broker_and_once_more_here() -> None:
    assert tags_code("AaAa") == tags_code("BBBB")
    group, seen = FakeGroup(queues=1), Seen()
    for tag in ("AaAa", "BBBB", "other", "AaAa"):
        group.broker.put(tag.encode(), TAGS=tag)
    async with consuming(group, seen, topics={TOPIC: "AaAa || BBAA"}):
        await until(lambda: group.broker.stored() == 4)
    assert seen.bodies == [b"AaAa", b"AaAa"]


async def test_an_sql_expression_goes_to_the_broker_which_may_refuse_it_at_the_start() -> None:
    group = FakeGroup()
    async with consuming(group, Seen(), topics={TOPIC: Sql("a > 5")}):
        await until(lambda: any(each.ext_fields["topic"] == TOPIC for each in pulls(group.broker)))
    (check,) = group.broker.of(RequestCode.CHECK_CLIENT_CONFIG)
    assert loads(check.body)["subscriptionData"]["expressionType"] == "SQL92"
    pull = next(each for each in pulls(group.broker) if each.ext_fields["topic"] == TOPIC)
    assert (pull.ext_fields["subscription"], pull.ext_fields["expressionType"]) == ("a > 5", "SQL92")
    for code in (ResponseCode.SUBSCRIPTION_PARSE_FAILED, ResponseCode.SYSTEM_ERROR):
        group.broker.script(RequestCode.CHECK_CLIENT_CONFIG, (int(code), "no"))
        async with group.running():
            consumer = PushConsumer(group.namesrv, Seen(), group=GROUP, topics={TOPIC: Sql("a >")})
            with pytest.raises(RefusedError, match="no"):
                await consumer.start()
            await consumer.close()


# -- ConsumeMessageConcurrentlyService


async def test_a_failed_message_is_sent_back_and_comes_by_the_retry_topic_as_its_own() -> None:
    group, seen = FakeGroup(queues=1), Seen(bad=ValueError("no"))
    group.broker.put(b"bad")
    group.broker.put(b"good")
    async with consuming(group, seen, max_reconsume_times=2):
        await until(lambda: group.broker.queues[DEAD, 0])
        await until(lambda: group.broker.stored(topic=RETRY) == 2)
    bad = [each for each in seen.messages if each.body == b"bad"]
    assert [(each.topic, each.attempts, each.queue.topic) for each in bad] == [
        (TOPIC, 0, TOPIC),
        (TOPIC, 1, RETRY),
        (TOPIC, 2, RETRY),
    ]
    assert len({each.message_id for each in bad}) <= len(bad)
    assert group.broker.stored() == 2
    backs = group.broker.of(RequestCode.CONSUMER_SEND_MSG_BACK)
    assert {(back.ext_fields["delayLevel"], back.ext_fields["maxReconsumeTimes"]) for back in backs} == {
        ("0", "2")
    }


async def test_a_handler_chooses_the_delay_or_the_dead_letters() -> None:
    group = FakeGroup(queues=1)
    group.topics = {TOPIC: 1}
    seen = Seen(later=RetryLater(delay_level=4), dead=DeadLetter())
    group.broker.put(b"later")
    group.broker.put(b"dead")
    async with consuming(group, seen, concurrency=1):
        await until(lambda: group.broker.stored() == 2)
    backs = group.broker.of(RequestCode.CONSUMER_SEND_MSG_BACK)
    assert [back.ext_fields["delayLevel"] for back in backs] == ["4", "-1"]
    assert [each.body for each in group.broker.queues[DEAD, 0]] == [b"dead"]


LOST = (int(ResponseCode.SYSTEM_ERROR), "look message by offset failed, 0")


async def test_where_the_broker_has_lost_the_record_the_message_itself_is_sent_to_the_retry_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ledgermq.client.send_back.SEND_BACK_LIMIT_S", 0.05)
    group, seen = FakeGroup(queues=1), Seen(bad=ValueError())
    group.topics = {TOPIC: 1}
    group.broker.script(RequestCode.CONSUMER_SEND_MSG_BACK, *[LOST] * 20)
    group.broker.put(b"bad", KEYS="k")
    async with consuming(group, seen):
        await until(lambda: group.broker.stored() == 1)
    (copy,) = group.broker.of(RequestCode.SEND_MESSAGE_V2)
    (message, *_) = group.broker.queues[RETRY, 0]
    header = SendMessageRequestHeader.parse(copy.ext_fields)
    assert (header.topic, header.reconsume_times, header.max_reconsume_times) == (RETRY, 1, 16)
    assert (message.body, b"DELAY\x013" in message.properties) == (b"bad", True)
    assert b"RETRY_TOPIC\x01orders" in message.properties


async def test_a_message_that_cannot_be_sent_back_keeps_the_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledgermq.client.consumption.AGAIN_S", 0.0)
    group, seen = FakeGroup(queues=1), Seen(bad=ValueError())
    group.topics = {TOPIC: 1}
    refusal = (int(ResponseCode.NO_PERMISSION), "the group may not write")
    group.broker.script(RequestCode.CONSUMER_SEND_MSG_BACK, refusal)
    group.broker.put(b"bad")
    async with consuming(group, seen):
        await until(lambda: group.broker.stored() == 1)
    assert [each.body for each in seen.messages] == [b"bad", b"bad"]
    assert len(group.broker.queues[RETRY, 0]) == 1


async def test_a_handler_over_its_time_counts_as_failed() -> None:
    group = FakeGroup(queues=1)
    group.topics = {TOPIC: 1}
    cancelled: list[bool] = []

    async def handle(message: ReceivedMessage) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    group.broker.put(b"slow")
    async with consuming(group, handle, handler_timeout_s=0.01):
        await until(lambda: group.broker.stored() == 1)
    assert cancelled == [True]
    assert len(group.broker.queues[RETRY, 0]) == 1


async def test_hooks_are_around_each_handling_and_see_its_failure() -> None:
    group, seen = FakeGroup(queues=1), Seen(bad=ValueError("no"))
    group.topics = {TOPIC: 1}
    handled: list[tuple[str, bytes, str]] = []

    class Hook:
        def sending(self, message: object, group: str) -> Any:
            raise AssertionError

        @contextmanager
        def handling(self, message: ReceivedMessage, group: str) -> Any:
            try:
                yield
                handled.append((group, message.body, "ok"))
            except ValueError as error:
                handled.append((group, message.body, str(error)))
                raise

    group.broker.put(b"good")
    group.broker.put(b"bad")
    async with consuming(group, seen, hooks=[Hook()], concurrency=1):
        await until(lambda: group.broker.stored() == 2)
    assert handled == [(GROUP, b"good", "ok"), (GROUP, b"bad", "no")]


# -- rebalance


async def test_queues_are_shared_averagely_with_the_other_members() -> None:
    group, seen = FakeGroup("a", "b", queues=4), Seen()
    for name, broker in group.brokers.items():
        broker.strangers = ["!first", "~last"]
        for queue_id in range(4):
            broker.put(f"{name}{queue_id}".encode(), queue_id)
    async with consuming(group, seen):
        await until(lambda: len(seen.messages) == 3)
        await loop_turns()
    assert sorted(seen.bodies) == [b"a3", b"b0", b"b1"]


async def test_a_notice_that_members_changed_rebalances_at_once_and_commits_what_is_given_away() -> None:
    group, seen = FakeGroup(queues=2), Seen()
    group.broker.put(b"0", 0)
    group.broker.put(b"1", 1)
    async with consuming(group, seen, commit_interval_s=60.0):
        await until(lambda: len(seen.messages) == 2)
        assert group.broker.stored(1) is None
        group.broker.strangers = ["~last"]
        group.broker.tell(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": GROUP})
        await until(lambda: group.broker.stored(1) == 1)
        group.broker.put(b"2", 1)
        group.broker.put(b"3", 0)
        await until(lambda: len(seen.messages) == 3)
        assert seen.bodies[-1] == b"3"
        group.broker.strangers = []
        group.broker.tell(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": GROUP})
        await until(lambda: seen.bodies[-1] == b"2")


async def test_a_member_that_no_broker_lists_keeps_its_queues_and_registers_again() -> None:
    group, seen = FakeGroup(queues=1), Seen()
    async with consuming(group, seen):
        await until(lambda: pulls(group.broker))
        beats = len(group.broker.beats)
        other = success_list(b'{"consumerIdList":["!other"]}')
        group.broker.script(RequestCode.GET_CONSUMER_LIST_BY_GROUP, other, other)
        group.broker.tell(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": GROUP})
        await until(lambda: len(group.broker.beats) > beats)
        group.broker.put(b"m")
        await until(lambda: seen.bodies == [b"m"])


def success_list(body: bytes) -> Any:
    def answer(request: RemotingCommand, _: Connection) -> RemotingCommand:
        return RemotingCommand(0, body=body)

    return answer


async def test_the_heartbeat_has_the_topics_and_the_groups_retry_topic() -> None:
    group = FakeGroup()
    async with consuming(group, Seen(), topics={TOPIC: "A || B"}):
        beat = group.broker.beats[0]
    (row,) = beat["consumerDataSet"]
    wanted = {each["topic"]: each["subString"] for each in row["subscriptionDataSet"]}
    assert wanted == {TOPIC: "A || B", RETRY: "*"}


async def test_a_topic_that_does_not_exist_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledgermq.client.push_consumer.ROUTE_WAIT_S", 0.01)
    group, seen = FakeGroup(queues=1), Seen()
    group.broker.put(b"m")
    topics, group.topics = group.topics, {}
    async with consuming(group, seen):
        await until(lambda: group.route_asks.count(TOPIC) > 2)
        group.topics = topics
        await until(lambda: seen.bodies == [b"m"])


# -- failures of brokers


async def test_reading_goes_on_where_it_was_after_the_broker_has_gone() -> None:
    group, seen = FakeGroup(queues=1), Seen()
    group.broker.put(b"0")
    group.broker.script(RequestCode.PULL_MESSAGE, close_connection, close_connection)
    async with consuming(group, seen):
        await until(lambda: seen.bodies == [b"0"])
        group.broker.script(RequestCode.PULL_MESSAGE, (int(ResponseCode.SERVICE_NOT_AVAILABLE), "election"))
        group.broker.put(b"1")
        await until(lambda: seen.bodies == [b"0", b"1"])


async def test_start_fails_where_no_name_server_answers() -> None:
    consumer = PushConsumer("127.0.0.1:1", Seen(), group=GROUP, topics=TOPIC)
    with pytest.raises(NotSentError):
        await consumer.start()
    await consumer.close()
    with pytest.raises(ClosedError):
        await consumer.start()


def test_impossible_options_are_refused() -> None:
    wrong: list[dict[str, Any]] = [{"concurrency": 0}, {"group": "a b"}, {"topics": []}]
    for options in wrong:
        with pytest.raises(WrongSubscriptionError):
            PushConsumer("127.0.0.1:1", Seen(), **{"group": GROUP, "topics": TOPIC, **options})


# -- offsets that are set


async def test_pull_offset_moved_by_a_reset_drops_what_was_pulled_and_goes_on_there() -> None:
    group, seen, release = FakeGroup(queues=1), Seen(), asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        await seen(message)
        if not release.is_set():
            await release.wait()

    group.topics = {TOPIC: 1}
    for number in range(40):
        group.broker.put(b"%d" % number)
    group.broker.offsets[GROUP, TOPIC, 0] = 30
    async with consuming(group, handle, concurrency=1) as consumer:
        await until(lambda: seen.bodies == [b"30"])
        group.broker.script(RequestCode.PULL_MESSAGE, moved_to(5))
        group.broker.put(b"40")
        await until(lambda: group.broker.stored() == 5)
        release.set()
        await until(lambda: group.broker.stored() == 41)
    assert seen.bodies == [b"30", *(b"%d" % number for number in range(5, 41))]
    assert consumer


def moved_to(offset: int) -> Any:
    def answer(request: RemotingCommand, _: Connection) -> RemotingCommand:
        ext = {"nextBeginOffset": str(offset), "minOffset": "0"}
        return RemotingCommand(ResponseCode.PULL_OFFSET_MOVED, ext_fields=ext)

    return answer


async def test_messages_that_were_removed_are_passed_over_and_pulled_ones_stay_good() -> None:
    group, seen = FakeGroup(queues=1), Seen()
    for number in range(4):
        group.broker.put(b"%d" % number)
    group.broker.offsets[GROUP, TOPIC, 0] = 0
    group.broker.firsts[TOPIC, 0] = 3
    async with consuming(group, seen):
        await until(lambda: group.broker.stored() == 4)
    assert seen.bodies == [b"3"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:1}}',
        b'{"offsetTable":[{"brokerName":"broker-a","queueId":0,"topic":"orders","offset":1}]}',
    ],
)
async def test_reset_consumer_client_offset_is_followed(body: bytes) -> None:
    group, seen = FakeGroup(queues=1), Seen()
    for number in range(3):
        group.broker.put(b"%d" % number)
    async with consuming(group, seen, concurrency=1):
        await until(lambda: group.broker.stored() == 3)
        group.broker.tell(
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET, {"topic": TOPIC, "group": GROUP, "timestamp": "0"}, body
        )
        await until(lambda: len(seen.messages) == 5 and group.broker.stored() == 3)
    assert seen.bodies == [b"0", b"1", b"2", b"1", b"2"]


# -- what brokers ask


async def test_the_brokers_questions_are_answered() -> None:
    group, seen = FakeGroup(queues=1), Seen(bad=ValueError("no"), later=RetryLater("soon"))
    group.broker.put(b"0")
    async with consuming(group, seen):
        await until(lambda: group.broker.stored() == 1)
        status = await group.broker.ask(
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, {"topic": TOPIC, "group": GROUP}
        )
        table = loads(status.body)["messageQueueTable"]
        assert [(orjson.loads(key)["queueId"], offset) for key, offset in table.items()] == [(0, 1)]
        info = await group.broker.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": GROUP})
        running = loads(info.body)
        assert running["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        rows = {orjson.loads(key)["topic"]: row for key, row in running["mqTable"].items()}
        assert (rows[TOPIC]["commitOffset"], rows[TOPIC]["cachedMsgCount"]) == (1, 0)
        assert {each["topic"] for each in running["subscriptionSet"]} == {TOPIC, RETRY}
        results = []
        for body in (b"now", b"bad", b"later"):
            message = group.broker.queues[TOPIC, 0][0]
            message.body = body
            answer = await group.broker.ask(
                RequestCode.CONSUME_MESSAGE_DIRECTLY,
                {"consumerGroup": GROUP, "brokerName": "broker-a"},
                group.broker.record(message, 0),
            )
            results.append(loads(answer.body)["consumeResult"])
        assert results == ["CR_SUCCESS", "CR_THROW_EXCEPTION", "CR_LATER"]
        wrong = await group.broker.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, {}, b"?")
        assert wrong.code == ResponseCode.SYSTEM_ERROR
    assert seen.bodies == [b"0", b"now", b"bad", b"later"]


# -- ConsumeMessageOrderlyService


async def test_orderly_handles_each_queue_in_order_and_tries_a_failed_message_before_the_next() -> None:
    group = FakeGroup(queues=2)
    seen = Seen()
    failed: list[int] = []

    async def handle(message: ReceivedMessage) -> None:
        await seen(message)
        if message.body == b"q0-1" and len(failed) < 2:
            failed.append(message.attempts)
            raise ValueError

    for number in range(4):
        for queue_id in (0, 1):
            group.broker.put(f"q{queue_id}-{number}".encode(), queue_id)
    async with consuming(group, handle, ordered=True, suspend_s=0.001):
        await until(lambda: group.broker.stored(0) == 4 and group.broker.stored(1) == 4)
        assert len(group.broker.locks) == 3
    first = [each.decode() for each in seen.bodies if each.startswith(b"q0")]
    assert first == ["q0-0", "q0-1", "q0-1", "q0-1", "q0-2", "q0-3"]
    assert failed == [0, 1]
    assert [each for each in seen.bodies if each.startswith(b"q1")] == [f"q1-{n}".encode() for n in range(4)]
    assert group.broker.locks == {}
    assert not group.broker.of(RequestCode.CONSUMER_SEND_MSG_BACK)


async def test_orderly_makes_a_dead_letter_and_goes_on() -> None:
    group, seen = FakeGroup(queues=1), Seen(bad=ValueError())
    group.broker.put(b"bad")
    group.broker.put(b"good")
    async with consuming(group, seen, ordered=True, suspend_s=0.001, max_reconsume_times=1):
        await until(lambda: group.broker.stored() == 2)
    assert seen.bodies == [b"bad", b"bad", b"good"]
    assert [each.body for each in group.broker.queues[DEAD, 0]] == [b"bad"]


async def test_orderly_reads_no_queue_that_another_client_has_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledgermq.client.push_consumer.AGAIN_S", 0.01)
    group, seen = FakeGroup(queues=2), Seen()
    group.broker.locks[TOPIC, 0] = "another"
    group.broker.put(b"0", 0)
    group.broker.put(b"1", 1)
    async with consuming(group, seen, ordered=True):
        await until(lambda: seen.bodies == [b"1"])
        del group.broker.locks[TOPIC, 0]
        await until(lambda: seen.bodies == [b"1", b"0"])


async def test_orderly_gives_a_queue_away_only_when_its_handler_has_ended() -> None:
    group, release, seen = FakeGroup(queues=2), asyncio.Event(), Seen()

    async def handle(message: ReceivedMessage) -> None:
        await seen(message)
        await release.wait()

    group.broker.put(b"0", 1)
    group.broker.put(b"1", 1)
    async with consuming(group, handle, ordered=True, commit_interval_s=60.0):
        await until(lambda: seen.bodies == [b"0"])
        group.broker.strangers = ["~last"]
        group.broker.tell(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": GROUP})
        members = len(group.broker.of(RequestCode.GET_CONSUMER_LIST_BY_GROUP))
        await until(lambda: len(group.broker.of(RequestCode.GET_CONSUMER_LIST_BY_GROUP)) >= members + 2)
        await loop_turns()
        assert (TOPIC, 1) in group.broker.locks
        release.set()
        await until(lambda: (TOPIC, 1) not in group.broker.locks)
        assert group.broker.stored(1) == 1
    assert seen.bodies == [b"0"]


async def test_orderly_drops_a_queue_whose_lock_is_not_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledgermq.client.push_consumer.LOCK_RENEW_S", 0.01)
    monkeypatch.setattr("ledgermq.client.push_consumer.AGAIN_S", 0.01)
    group, seen, release = FakeGroup(queues=1), Seen(), asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        await seen(message)
        await release.wait()

    group.broker.put(b"0")
    async with consuming(group, handle, ordered=True):
        await until(lambda: seen.bodies == [b"0"])
        group.broker.locks[TOPIC, 0] = "another"
        renewals = len(group.broker.of(RequestCode.LOCK_BATCH_MQ))
        await until(lambda: len(group.broker.of(RequestCode.LOCK_BATCH_MQ)) > renewals + 2)
        release.set()
        await loop_turns()
        assert group.broker.stored() is None or group.broker.stored() == 0
        del group.broker.locks[TOPIC, 0]
        await until(lambda: seen.bodies == [b"0", b"0"])
        await until(lambda: group.broker.stored() == 1)


# -- broadcast


async def test_broadcasting_reads_all_queues_and_keeps_its_offsets_in_a_file(tmp_path: Path) -> None:
    group, seen = FakeGroup(queues=2), Seen(bad=ValueError())
    path = tmp_path / "more" / "offsets.json"
    for broker in group.brokers.values():
        broker.strangers = ["!first"]
    group.broker.put(b"bad", 0)
    group.broker.put(b"1", 1)
    async with consuming(group, seen, broadcast=True, offsets_file=path):
        await until(lambda: len(seen.messages) == 2)
    table = loads(path.read_bytes())["offsetTable"]
    assert {(orjson.loads(key)["queueId"], offset) for key, offset in table.items()} == {(0, 1), (1, 1)}
    codes = {each.code for each in group.broker.requests}
    assert not codes & {
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        RequestCode.CONSUMER_SEND_MSG_BACK,
    }
    group.broker.put(b"2", 0)
    again = Seen()
    async with consuming(group, again, broadcast=True, offsets_file=path):
        await until(lambda: again.bodies == [b"2"])


async def test_a_file_of_offsets_that_cannot_be_read_is_an_error_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    path.write_bytes(b"?")
    group = FakeGroup()
    with pytest.raises(WrongSubscriptionError, match="cannot be read"):
        async with consuming(group, Seen(), broadcast=True, offsets_file=path):
            pass


# -- the end


async def test_close_waits_for_handlers_and_commits_what_they_have_done() -> None:
    group, started, release = FakeGroup(queues=1), asyncio.Event(), asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        started.set()
        await release.wait()

    group.broker.put(b"0")
    async with group.running():
        consumer = PushConsumer(
            group.namesrv, handle, group=GROUP, topics=TOPIC, consume_from=Where.BEGINNING
        )
        await consumer.start()
        await started.wait()
        closing = asyncio.create_task(consumer.close())
        await loop_turns()
        assert not closing.done()
        release.set()
        await closing
    assert group.broker.stored() == 1


async def test_close_cancels_handlers_after_its_limit_and_leaves_no_task() -> None:
    group, started = FakeGroup(queues=1), asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        started.set()
        await asyncio.Event().wait()

    group.broker.put(b"0")
    async with group.running():
        before = asyncio.all_tasks()
        consumer = PushConsumer(
            group.namesrv,
            handle,
            group=GROUP,
            topics=TOPIC,
            consume_from=Where.BEGINNING,
            close_timeout_s=0.01,
        )
        await consumer.start()
        await started.wait()
        await consumer.close()
        await until(lambda: not client_tasks(before))
    assert group.broker.stored() in (None, 0)


def client_tasks(before: set[asyncio.Task[Any]]) -> list[str]:
    """Of the client; the brokers here have their own."""
    files = {repr(each): each.get_coro().cr_code.co_filename for each in asyncio.all_tasks() - before}  # type: ignore[union-attr]
    return [name for name, file in files.items() if Path(file).parent == CLIENT]


async def test_a_cancelled_close_ends_the_client_all_the_same() -> None:
    group, started = FakeGroup(queues=1), asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        started.set()
        await asyncio.Event().wait()

    group.broker.put(b"0")
    async with group.running():
        consumer = PushConsumer(
            group.namesrv, handle, group=GROUP, topics=TOPIC, consume_from=Where.BEGINNING
        )
        await consumer.start()
        await started.wait()
        closing = asyncio.create_task(consumer.close())
        await loop_turns()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await until(lambda: group.broker.clients == {})


async def test_a_lock_whose_answer_has_not_come_is_freed_at_the_end() -> None:
    group, asked = FakeGroup(queues=1), asyncio.Event()
    group.topics = {TOPIC: 1}

    async def silent(request: RemotingCommand, _: Connection) -> None:
        group.broker._lock(request)
        asked.set()
        await asyncio.Event().wait()

    group.broker.script(RequestCode.LOCK_BATCH_MQ, silent)
    async with consuming(group, Seen(), ordered=True):
        await asked.wait()
        assert len(group.broker.locks) == 1
    assert group.broker.locks == {}


async def test_a_dead_letter_whose_record_is_lost_is_sent_as_one_that_was_tried_too_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ledgermq.client.send_back.SEND_BACK_LIMIT_S", 0.05)
    group, seen = FakeGroup(queues=1), Seen(dead=DeadLetter())
    group.topics = {TOPIC: 1}
    group.broker.script(RequestCode.CONSUMER_SEND_MSG_BACK, *[LOST] * 20)
    group.broker.put(b"dead")
    async with consuming(group, seen, max_reconsume_times=2):
        await until(lambda: group.broker.stored() == 1)
    (copy,) = group.broker.of(RequestCode.SEND_MESSAGE_V2)
    header = SendMessageRequestHeader.parse(copy.ext_fields)
    assert (header.reconsume_times, header.max_reconsume_times) == (3, 2)


async def test_broadcasting_without_a_file_begins_where_it_is_told_each_time() -> None:
    group = FakeGroup(queues=1)
    group.broker.put(b"0")
    for _ in range(2):
        seen = Seen()
        async with consuming(group, seen, broadcast=True, ordered=True):
            await until(lambda seen=seen: seen.bodies == [b"0"])  # type: ignore[misc]
    assert not group.broker.of(RequestCode.LOCK_BATCH_MQ)
