"""What the driver tells brokers when a batch is written, and what it makes of their answers."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from remoting.client.routes import MessageQueue
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RESPONSE_FLAG, RemotingCommand
from remoting.headers.send import BatchEnd
from rocketmq_spark.client.cluster import Cluster
from rocketmq_spark.errors import ClusterUnavailableError, DeliveryError, RequestRefusedError
from rocketmq_spark.options import ConnectionOptions
from rocketmq_spark.sink import writers as ending
from rocketmq_spark.sink.delivery import SinkCommit, TaskPlace, Written
from rocketmq_spark.sink.options import SinkOptions
from rocketmq_spark.sink.planning import Placement, SinkPlan
from rocketmq_spark.sink.rows import Columns
from rocketmq_spark.sink.writers import end_batch

PLACEMENT = Placement("T", tuple(MessageQueue("T", name, 0) for name in ("a", "b", "c")))
WRITER = f"q.{PLACEMENT.suffix}"


def plan_of(placement: Placement | None = PLACEMENT, **changes: Any) -> SinkPlan:
    return SinkPlan(SinkOptions(ConnectionOptions("h:1"), **changes), Columns("body"), True, placement)


def commit_of(partition: int, *written: Written) -> SinkCommit:
    return SinkCommit(TaskPlace("q", 7, partition), 1, 0, 0, written)


COMMITS = [
    commit_of(0, Written("a", WRITER, 3, b"0" * 16), Written("b", WRITER, 1, b"1" * 16)),
    commit_of(1, Written("a", WRITER, 2, b"2" * 16)),
    commit_of(2),
]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, BatchEnd]:
    found: dict[str, BatchEnd] = {}

    def invoke(self: Cluster, name: str, make: Any) -> RemotingCommand:
        command = make()
        assert command.code == RequestCode.LEDGERMQ_END_BATCH
        found[name] = BatchEnd.parse(command.body)
        return RemotingCommand(0, flag=RESPONSE_FLAG)

    monkeypatch.setattr(Cluster, "invoke_leader", invoke)
    return found


def test_every_broker_that_rows_may_go_to_is_asked(asked: dict[str, BatchEnd]) -> None:
    end_batch(plan_of(), COMMITS, is_over=False)
    assert asked == {
        "a": BatchEnd(7, {WRITER: {0: (3, b"0" * 16), 1: (2, b"2" * 16)}}),
        "b": BatchEnd(7, {WRITER: {0: (1, b"1" * 16)}}),
        "c": BatchEnd(7, {WRITER: {}}),
    }


def test_where_a_column_names_the_topics_those_are_asked_that_rows_went_to(
    asked: dict[str, BatchEnd],
) -> None:
    end_batch(plan_of(None, check_repeats=False), COMMITS, is_over=True)
    assert asked["a"] == BatchEnd(7, {WRITER: {0: (3, b"0" * 16), 1: (2, b"2" * 16)}}, False, True)
    assert asked.keys() == {"a", "b"}


@pytest.mark.parametrize(
    ("plan", "commits"),
    [
        (plan_of(check_repeats=False), COMMITS),
        (plan_of(), []),
        (SinkPlan(SinkOptions(ConnectionOptions("h:1")), Columns("body"), False), COMMITS),
    ],
)
def test_nobody_is_asked_when_there_is_nothing_to_know(
    asked: dict[str, BatchEnd], plan: SinkPlan, commits: list[SinkCommit]
) -> None:
    end_batch(plan, commits, is_over=False)
    assert asked == {}


def answer_with(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    answer = RemotingCommand(code, flag=RESPONSE_FLAG, remark="batch 7: words")
    monkeypatch.setattr(Cluster, "invoke_leader", lambda *_: answer)


@pytest.mark.parametrize("is_over", [False, True])
def test_other_rows_end_the_query_with_what_to_do(monkeypatch: pytest.MonkeyPatch, is_over: bool) -> None:
    answer_with(monkeypatch, ResponseCode.LEDGERMQ_SEQUENCE_DIFFERS)
    monkeypatch.setattr(ending, "DOUBTS_S", 0.0)
    with pytest.raises(DeliveryError, match=r"broker a holds other rows: batch 7: words\. .*same partitions"):
        end_batch(plan_of(), COMMITS, is_over=is_over)


def test_a_leader_that_is_cut_off_is_outlasted(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = [ResponseCode.SUCCESS, ResponseCode.SUCCESS, ResponseCode.SUCCESS]
    codes += [ResponseCode.LEDGERMQ_SEQUENCE_DIFFERS] * 2
    forgotten: list[str] = []
    monkeypatch.setattr("rocketmq_spark.client.cluster.time.sleep", lambda _: None)
    monkeypatch.setattr(Cluster, "forget_leader", lambda _, name: forgotten.append(name))
    monkeypatch.setattr(
        Cluster, "invoke_leader", lambda *_: RemotingCommand(codes.pop(), flag=RESPONSE_FLAG, remark="x")
    )
    end_batch(plan_of(), COMMITS, is_over=False)
    assert (codes, forgotten) == ([], ["a", "a"])


def test_a_broker_that_does_not_know_the_question_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
    end_batch(plan_of(), COMMITS, is_over=False)


def test_a_lost_answer_of_a_broker_that_has_freed_the_writers_costs_no_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client repeats a request whose answer was lost: the broker has no numbers to compare then."""
    freed: set[str] = set()

    def execute(name: str, end: BatchEnd) -> RemotingCommand:
        differs = end.is_checked and name in freed
        if end.is_over and not differs:
            freed.add(name)
        return RemotingCommand(ResponseCode.LEDGERMQ_SEQUENCE_DIFFERS if differs else 0, flag=RESPONSE_FLAG)

    def invoke(self: Cluster, name: str, make: Any) -> RemotingCommand:
        execute(name, BatchEnd.parse(make().body))
        return execute(name, BatchEnd.parse(make().body))

    monkeypatch.setattr(Cluster, "invoke_leader", invoke)
    monkeypatch.setattr(ending, "DOUBTS_S", 0.0)
    end_batch(plan_of(), COMMITS, is_over=True)
    assert freed == {"a", "b", "c"}


@pytest.mark.parametrize("is_reached", [False, True])
def test_a_writer_that_cannot_be_freed_costs_no_write(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_reached: bool
) -> None:
    def invoke(self: Cluster, name: str, make: Any) -> RemotingCommand:
        if not BatchEnd.parse(make().body).is_over:
            return RemotingCommand(0, flag=RESPONSE_FLAG)
        if not is_reached:
            raise ClusterUnavailableError(f"{name} does not answer")
        return RemotingCommand(ResponseCode.SYSTEM_ERROR, flag=RESPONSE_FLAG, remark="words")

    monkeypatch.setattr(Cluster, "invoke_leader", invoke)
    with caplog.at_level(logging.WARNING):
        end_batch(plan_of(), COMMITS, is_over=True)
    assert "broker a did not free the writers" in caplog.text


def test_a_batch_that_cannot_be_checked_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, ResponseCode.SYSTEM_ERROR)
    with pytest.raises(RequestRefusedError, match="end of batch 7 at a"):
        end_batch(plan_of(), COMMITS, is_over=False)
