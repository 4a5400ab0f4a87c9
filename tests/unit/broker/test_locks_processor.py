"""41 and 42: queue locks of ordered consumers."""

from pathlib import Path

import orjson
import pytest

from broker.consume.queue_locks import LockProcessor
from broker.state.changes import DeleteTopic
from commitlog.log import PutStatus
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from tests.support.polling import until
from tests.unit.broker.consume_bench import ConsumeBench, make_bench, request

UNLOCK = RequestCode.UNLOCK_BATCH_MQ


@pytest.fixture
async def bench(tmp_path: Path) -> ConsumeBench:
    return await make_bench(tmp_path)


def lock(
    client_id: str, *queue_ids: int, topic: str = "t", code: int = RequestCode.LOCK_BATCH_MQ
) -> RemotingCommand:
    queues = [{"brokerName": "broker-a", "queueId": each, "topic": topic} for each in queue_ids]
    body = orjson.dumps({"clientId": client_id, "consumerGroup": "g", "mqSet": queues})
    return request(code, body + b"\n")


async def granted(bench: ConsumeBench, asked: RemotingCommand) -> list[int]:
    answer = await bench.ask(asked)
    assert answer.code == 0
    queues = orjson.loads(answer.body)["lockOKMQSet"]
    assert all(each["brokerName"] == "broker-a" and each["topic"] == "t" for each in queues)
    return [each["queueId"] for each in queues]


async def test_a_queue_is_one_clients_until_it_is_freed_or_not_renewed(bench: ConsumeBench) -> None:
    assert await granted(bench, lock("a", 0, 1)) == [0, 1]
    assert await granted(bench, lock("b", 0, 2)) == [2]
    assert (await bench.ask(lock("a", 0, code=UNLOCK))).code == 0
    assert await granted(bench, lock("b", 0, 1)) == [0]
    bench.now_ms += 60_001
    assert await granted(bench, lock("b", 1)) == [1]


async def test_queues_that_do_not_exist_are_not_granted(bench: ConsumeBench) -> None:
    assert await granted(bench, lock("a", 3, 4, -1)) == [3]
    assert await granted(bench, lock("a", 0, topic="absent")) == []


async def test_a_follower_refuses_and_a_new_leader_knows_who_holds_what(bench: ConsumeBench) -> None:
    assert await granted(bench, lock("a", 0, 1)) == [0, 1]
    bench.follow("n1")
    assert (await bench.ask(lock("a", 0))).code == 14
    assert (await bench.ask(lock("a", 0, code=UNLOCK))).code == 0
    bench.now_ms += 50_000
    bench.lead()
    assert await granted(bench, lock("b", 0, 1, 2)) == [2]
    bench.now_ms += 60_000
    assert await granted(bench, lock("a", 0)) == [0]
    bench.now_ms += 1
    assert await granted(bench, lock("b", 0, 1)) == [1]


async def test_renewals_are_no_records_and_all_that_changes_at_once_is_one(bench: ConsumeBench) -> None:
    before = bench.state_puts
    await granted(bench, lock("a", 0, 1, 2, 3))
    assert bench.state_puts == before + 1
    assert await granted(bench, lock("a", 0, 1, 2, 3)) == [0, 1, 2, 3]
    assert bench.state_puts == before + 1
    await bench.ask(lock("a", 0, 1, code=UNLOCK))
    await bench.ask(lock("b", 0, code=UNLOCK))
    assert bench.state_puts == before + 2
    assert dict(bench.parts.state.locks.items()) == {("g", ("t", 2)): "a", ("g", ("t", 3)): "a"}


async def test_nobody_is_told_of_a_lock_before_a_majority_has_it(bench: ConsumeBench) -> None:
    bench.log.auto_commit = False
    bench.start(lock("a", 0))
    bench.start(lock("a", 0))
    bench.start(lock("b", 0))
    await bench.settle()
    (refused,) = bench.connection.take_answers()
    assert orjson.loads(refused.body)["lockOKMQSet"] == []
    bench.log.commit()
    await bench.settle()
    answers = bench.connection.take_answers()
    assert [len(orjson.loads(each.body)["lockOKMQSet"]) for each in answers] == [1, 1]


async def test_a_lock_the_log_does_not_take_is_not_granted_and_free(bench: ConsumeBench) -> None:
    bench.log.next_status = PutStatus.OS_PAGE_CACHE_BUSY
    assert await granted(bench, lock("a", 0)) == []
    bench.log.next_status = PutStatus.PUT_OK
    assert await granted(bench, lock("b", 0)) == [0]


async def test_a_lock_that_may_yet_be_committed_is_kept_from_others(bench: ConsumeBench) -> None:
    bench.log.auto_commit = False
    bench.start(lock("a", 0))
    await bench.settle()
    bench.log.time_out()
    await bench.settle()
    (answer,) = bench.connection.take_answers()
    assert orjson.loads(answer.body)["lockOKMQSet"] == []
    bench.log.auto_commit = True
    assert await granted(bench, lock("b", 0)) == []
    assert await granted(bench, lock("a", 0)) == [0]


async def test_a_leader_without_its_majority_renews_nothing(bench: ConsumeBench) -> None:
    assert await granted(bench, lock("a", 0)) == [0]
    bench.engine.undisputed = False
    bench.start(lock("a", 0))
    await bench.settle()
    assert bench.connection.answers == []
    bench.now_ms += 701
    await until(lambda: bench.connection.answers)
    (answer,) = bench.connection.take_answers()
    assert answer.code == 14


async def test_who_does_not_renew_is_forgotten_by_the_log_too(bench: ConsumeBench) -> None:
    await granted(bench, lock("a", 0, 1))
    processor = next(each for each in bench.parts.features.services if isinstance(each, LockProcessor))
    processor.expire()
    assert len(bench.parts.state.locks) == 2
    bench.now_ms += 60_001
    processor.expire()
    await bench.settle()
    assert len(bench.parts.state.locks) == 0


async def test_locks_are_in_the_snapshot(bench: ConsumeBench) -> None:
    await granted(bench, lock("a", 0))
    copy = bench.parts.state._tables.copy()
    await granted(bench, lock("a", 1))
    assert copy.to_json()["locks"] == [["g", "t", 0, "a"]]
    other = bench.parts.state._tables.copy()
    other.load_json(copy.to_json())
    assert dict(other.locks.items()) == {("g", ("t", 0)): "a"}


async def test_a_deleted_topics_locks_go_with_it(bench: ConsumeBench) -> None:
    await granted(bench, lock("a", 0))
    await bench.parts.state.propose(DeleteTopic("t"))
    assert len(bench.parts.state.locks) == 0


async def test_a_lock_asked_for_during_an_election_is_granted_by_the_new_leader(bench: ConsumeBench) -> None:
    bench.follow(None)
    bench.start(lock("a", 0))
    await bench.settle()
    assert bench.connection.answers == []
    bench.lead()
    await bench.settle()
    (answer,) = bench.connection.take_answers()
    assert len(orjson.loads(answer.body)["lockOKMQSet"]) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"clientId":"c"}',
        b'{"consumerGroup":"g"}',
        b'{"consumerGroup":"","clientId":"c"}',
        b'{"consumerGroup":"g","clientId":"c","mqSet":7}',
        b'{"consumerGroup":"g","clientId":"c","mqSet":[7]}',
        b'{"consumerGroup":"g","clientId":"c","mqSet":[{"topic":"t","queueId":"x"}]}',
        b'{"consumerGroup":"g","clientId":"c","mqSet":[{"topic":"t","queueId":true}]}',
    ],
)
async def test_unreadable_bodies_are_answered_1(bench: ConsumeBench, body: bytes) -> None:
    assert (await bench.ask(request(RequestCode.LOCK_BATCH_MQ, body))).code == 1


async def test_no_queues_are_no_locks(bench: ConsumeBench) -> None:
    body = b'{"consumerGroup":"g","clientId":"c"}'
    assert await granted(bench, request(RequestCode.LOCK_BATCH_MQ, body)) == []
