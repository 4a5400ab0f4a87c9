"""The rules of consumers without I/O, named after what RocketMQ's clients do."""

import asyncio
import sys
import threading
from functools import partial

import pytest

from ledgermq.client import (
    DeadLetter,
    MessageQueue,
    PullLimits,
    ReceivedMessage,
    RetryLater,
    Sql,
    UnreadableError,
    WrongSubscriptionError,
)
from ledgermq.client.handling import HandlerRunner
from ledgermq.client.hooks import Hooks
from ledgermq.client.outcomes import Action, Decision, Retries
from ledgermq.client.progress import MESSAGE_BYTES, QueueProgress, was_trimmed
from ledgermq.client.queue_locks import LOCK_VALID_S, QueueLock, lock_command, locked_queues
from ledgermq.client.subscriptions import (
    ConsumeType,
    check_group,
    consumer_part,
    subscription_of,
    subscriptions_of,
)
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.fastjson import loads
from remoting.record import tags_code
from tests.support.polling import until

QUEUE = MessageQueue("orders", "broker-a", 1)


def message(offset: int = 0, *, tag: str | None = None, body: bytes = b"m") -> ReceivedMessage:
    return ReceivedMessage(
        topic="orders",
        body=body,
        queue=QUEUE,
        queue_offset=offset,
        position=offset * 100,
        message_id=f"id-{offset}",
        offset_message_id=f"at-{offset}",
        tag=tag,
        keys=(),
        properties={},
        flag=0,
        born_at_ms=0,
        stored_at_ms=0,
        born_host="127.0.0.1:1",
        attempts=0,
    )


# -- ProcessQueue


def test_the_offset_to_commit_is_that_of_the_first_unfinished_message() -> None:
    progress = QueueProgress(5)
    progress.pulled([message(number) for number in range(5, 9)], 9)
    assert progress.committable == 5
    progress.finish(6)
    progress.finish(7)
    assert progress.committable == 5
    progress.finish(5)
    assert progress.committable == 8
    progress.finish(8)
    assert (progress.committable, len(progress), progress.size_bytes) == (9, 0, 0)


def test_offsets_of_messages_that_are_not_wanted_are_committed_once_nothing_is_unfinished() -> None:
    progress = QueueProgress(0)
    progress.pulled([message(3)], 10)
    assert progress.committable == 3
    progress.finish(3)
    assert progress.committable == 10
    progress.pulled([], 25)
    assert (progress.committable, progress.next_offset) == (25, 25)


def test_messages_below_the_pulled_offset_are_not_handled_twice() -> None:
    progress = QueueProgress(4)
    assert [each.queue_offset for each in progress.pulled([message(n) for n in (2, 3, 4)], 5)] == [4]
    assert progress.pulled([message(4)], 5) == []
    assert len(progress) == 1


@pytest.mark.parametrize(
    ("limits", "may_pull"),
    [
        (PullLimits(messages=3), True),
        (PullLimits(messages=2), False),
        (PullLimits(size_bytes=2 * (MESSAGE_BYTES + 1)), False),
        (PullLimits(size_bytes=2 * (MESSAGE_BYTES + 1) + 1), True),
        (PullLimits(span=51), True),
        (PullLimits(span=50), False),
        (PullLimits(span=None), True),
    ],
)
def test_pulls_stop_at_messages_bytes_and_span(limits: PullLimits, may_pull: bool) -> None:
    progress = QueueProgress(0)
    progress.pulled([message(0), message(50)], 51)
    assert progress.may_pull(limits) is may_pull


def test_an_offset_that_was_trimmed_is_told_from_one_that_was_set() -> None:
    assert was_trimmed(next_offset=100, min_offset=100, asked=40)
    assert not was_trimmed(next_offset=90, min_offset=10, asked=40)
    assert not was_trimmed(next_offset=10, min_offset=10, asked=40)


# -- ConsumeMessageConcurrentlyService


def test_a_message_that_fails_is_sent_back_at_the_delay_that_the_broker_chooses() -> None:
    retries = Retries()
    assert retries.decide(None, 3) == Decision(Action.DONE)
    assert retries.decide(ValueError(), 0) == Decision(Action.SEND_BACK, 0)
    assert retries.decide(ValueError(), 16) == Decision(Action.SEND_BACK, 0)
    assert (retries.times_max, Retries(reconsume_times_max=2).times_max) == (16, 2)


def test_a_handler_chooses_the_delay_level_or_the_dead_letters() -> None:
    retries = Retries()
    assert retries.decide(RetryLater(), 0) == Decision(Action.SEND_BACK, 0)
    assert retries.decide(RetryLater(delay_level=5), 0) == Decision(Action.SEND_BACK, 5)
    assert retries.decide(DeadLetter(), 0) == Decision(Action.SEND_BACK, -1)
    for level in (0, 19):
        with pytest.raises(ValueError, match="1 and 18"):
            RetryLater(delay_level=level)


def test_broadcasting_drops_a_message_that_fails() -> None:
    assert Retries(is_broadcast=True).decide(ValueError(), 0).action is Action.DROP
    ordered = Retries(is_ordered=True, is_broadcast=True, reconsume_times_max=1)
    assert ordered.decide(ValueError(), 0).action is Action.TRY_AGAIN
    assert ordered.decide(ValueError(), 1).action is Action.DROP


# -- ConsumeMessageOrderlyService


def test_orderly_suspends_the_queue_for_ever_by_default() -> None:
    assert Retries(is_ordered=True).decide(ValueError(), 1_000) == Decision(Action.TRY_AGAIN)
    assert Retries(is_ordered=True).decide(RetryLater(delay_level=5), 0) == Decision(Action.TRY_AGAIN)


def test_orderly_makes_a_dead_letter_after_max_reconsume_times() -> None:
    retries = Retries(is_ordered=True, reconsume_times_max=2)
    actions = [retries.decide(ValueError(), attempts) for attempts in range(3)]
    assert actions == [
        Decision(Action.TRY_AGAIN),
        Decision(Action.TRY_AGAIN),
        Decision(Action.SEND_BACK, -1),
    ]
    assert retries.decide(DeadLetter(), 0) == Decision(Action.SEND_BACK, -1)


def test_a_lock_is_valid_for_30_s_from_the_request_that_was_granted() -> None:
    lock = QueueLock(100.0)
    assert lock.is_valid(100.0 + LOCK_VALID_S - 0.001)
    assert not lock.is_valid(100.0 + LOCK_VALID_S)
    lock.renewed(120.0)
    assert lock.is_valid(149.0)


def test_lock_bodies_are_rocketmqs() -> None:
    command = lock_command(RequestCode.LOCK_BATCH_MQ, "g", "c", [QUEUE])
    row = {"brokerName": "broker-a", "queueId": 1, "topic": "orders"}
    assert loads(command.body) == {"clientId": "c", "consumerGroup": "g", "mqSet": [row]}
    answer = b'{"lockOKMQSet":[{"brokerName":"broker-a","queueId":1,"topic":"orders"}]}'
    assert locked_queues(RemotingCommand(0, body=answer)) == {QUEUE}
    assert locked_queues(RemotingCommand(0, body=b"{}")) == set()
    for body in (b"", b"[]", b'{"lockOKMQSet":[{}]}', b'{"lockOKMQSet":[1]}'):
        with pytest.raises(UnreadableError):
            locked_queues(RemotingCommand(0, body=body))


# -- subscriptions


def test_a_subscription_has_the_form_that_java_members_send() -> None:
    subscription = subscription_of("orders", "TagA || TagB", 7)
    assert subscription.to_json() == {
        "classFilterMode": False,
        "codeSet": [tags_code("TagA"), tags_code("TagB")],
        "expressionType": "TAG",
        "subString": "TagA || TagB",
        "subVersion": 7,
        "tagsSet": ["TagA", "TagB"],
        "topic": "orders",
    }
    (row,) = consumer_part("g", ConsumeType.PUSH, [subscription])["consumerDataSet"]
    assert (row["groupName"], row["consumeType"], row["messageModel"]) == (
        *("g", "CONSUME_PASSIVELY", "CLUSTERING"),
    )


def test_the_tag_itself_is_compared_besides_its_hash() -> None:
    assert tags_code("AaAa") == tags_code("BBBB")
    subscription = subscription_of("orders", "AaAa", 0)
    assert subscription.wants(message(tag="AaAa"))
    assert not subscription.wants(message(tag="BBBB"))
    assert not subscription.wants(message(tag=None))
    assert subscription_of("orders", "*", 0).wants(message(tag=None))


def test_an_sql_expression_is_left_to_the_broker() -> None:
    subscription = subscription_of("orders", Sql("a > 5"), 0)
    assert (subscription.expression, subscription.expression_type) == ("a > 5", "SQL92")
    assert subscription.wants(message(tag="any"))


def test_topics_are_given_as_one_several_or_with_what_is_wanted() -> None:
    assert [each.expression for each in subscriptions_of("t", 0).values()] == ["*"]
    assert list(subscriptions_of(["t", "u"], 0)) == ["t", "u"]
    mixed = subscriptions_of({"t": "A", "u": Sql("x = 1")}, 0)
    assert [each.expression_type for each in mixed.values()] == ["TAG", "SQL92"]


@pytest.mark.parametrize("topics", ["", [], {}, {"t": " || "}, {"t": Sql(" ")}, "a b", "x" * 128])
def test_impossible_subscriptions_are_refused(topics: object) -> None:
    with pytest.raises(WrongSubscriptionError):
        subscriptions_of(topics, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("group", ["", "a b", "g" * 121])
def test_impossible_groups_are_refused(group: str) -> None:
    with pytest.raises(WrongSubscriptionError):
        check_group(group)


# -- handlers


async def test_every_way_to_write_an_async_handler_is_awaited() -> None:
    handled: list[str] = []

    async def handle(message: ReceivedMessage, name: str = "function") -> None:
        handled.append(name)

    class Callable:
        async def __call__(self, message: ReceivedMessage) -> None:
            handled.append("object")

        async def method(self, message: ReceivedMessage) -> None:
            handled.append("method")

    for handler in (
        handle,
        partial(handle, name="partial"),
        Callable(),
        Callable().method,
        lambda m: handle(m),
    ):
        runner = HandlerRunner(handler, Hooks((), "g"), 1, 20.0)
        assert await runner.run(message()) is None
        runner.close()
    assert handled == ["function", "partial", "object", "method", "function"]


async def test_a_thread_whose_handler_does_not_end_is_left_and_its_message_failed() -> None:
    release = threading.Event()
    runner = HandlerRunner(lambda _: release.wait(20), Hooks((), "g"), 1, 0.01)
    assert isinstance(await runner.run(message()), TimeoutError)
    runner.close()
    release.set()
    await until(
        lambda: not [each for each in threading.enumerate() if each.name.startswith("ledgermq-handler")]
    )


async def test_a_handler_that_does_not_let_itself_be_cancelled_leaves_its_task_usable() -> None:
    stubborn = True

    async def handle(_: ReceivedMessage) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not stubborn:
                raise

    runner = HandlerRunner(handle, Hooks((), "g"), 1, 0.01)
    assert await runner.run(message()) is None
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    stubborn = False
    assert isinstance(await runner.run(message()), TimeoutError)
    assert task.cancelling() == 0
    running = asyncio.create_task(runner.run(message()))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    runner.close()


async def test_a_thread_that_would_end_the_process_fails_its_message() -> None:
    runner = HandlerRunner(lambda _: sys.exit(1), Hooks((), "g"), 1, 20.0)
    assert isinstance(await runner.run(message()), RuntimeError)
    runner.close()
