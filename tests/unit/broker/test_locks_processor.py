"""41 and 42: queue locks of ordered consumers."""

from pathlib import Path

import orjson
import pytest

from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from tests.unit.broker.consume_bench import ConsumeBench, make_bench, request


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
    assert (await bench.ask(lock("a", 0, code=RequestCode.UNLOCK_BATCH_MQ))).code == 0
    assert await granted(bench, lock("b", 0, 1)) == [0]
    bench.now_ms += 60_001
    assert await granted(bench, lock("b", 1)) == [1]


async def test_queues_that_do_not_exist_are_not_granted(bench: ConsumeBench) -> None:
    assert await granted(bench, lock("a", 3, 4, -1)) == [3]
    assert await granted(bench, lock("a", 0, topic="absent")) == []


async def test_a_follower_refuses_and_a_new_leader_starts_with_none(bench: ConsumeBench) -> None:
    await bench.ask(lock("a", 0))
    bench.follow("n1")
    assert (await bench.ask(lock("a", 0))).code == 14
    assert (await bench.ask(lock("a", 0, code=RequestCode.UNLOCK_BATCH_MQ))).code == 0
    bench.lead()
    assert await granted(bench, lock("b", 0)) == [0]


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
