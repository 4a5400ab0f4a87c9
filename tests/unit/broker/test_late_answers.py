"""Refusals that are told later than in the turn of their request are counted as those told at once, each
one time.
"""

import re
from pathlib import Path

import pytest

import broker
from commitlog.errors import DamagedRecordError
from commitlog.log import PutStatus
from remoting.codes import RequestCode, ResponseCode
from remoting.command import ONEWAY_FLAG, RemotingCommand
from tests.support.pop_bench import PopBench, make_pop_bench
from tests.support.timer_bench import make_timer_bench
from tests.unit.broker.consume_bench import ConsumeBench, make_bench, pull_request, waits_of

SOURCES = Path(broker.__file__).parent
SENDS = SOURCES / "send" / "processor.py"


def refused(bench: ConsumeBench | PopBench) -> dict[tuple[int, int], int]:
    return bench.parts.router.counts.refused


async def test_a_held_pull_that_wakes_to_a_damaged_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = await make_bench(tmp_path)

    def damaged(*_: object) -> bytes:
        raise DamagedRecordError(0, "CRC")

    bench.start(pull_request(0))
    await bench.settle()
    monkeypatch.setattr(bench.log, "read_many", damaged)
    await bench.put(b"one")
    (answer,) = bench.connection.take_answers()
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert refused(bench) == {(RequestCode.PULL_MESSAGE, ResponseCode.SYSTEM_BUSY): 1}


async def test_a_held_pull_that_loses_its_place(tmp_path: Path) -> None:
    bench = await make_bench(tmp_path)
    bench.start(pull_request(0))
    await bench.settle()
    (held,) = waits_of(bench)._table.take_all()
    waits_of(bench)._refuse(held)
    assert [answer.code for answer in bench.connection.take_answers()] == [ResponseCode.SYSTEM_BUSY]
    assert refused(bench) == {(RequestCode.PULL_MESSAGE, ResponseCode.SYSTEM_BUSY): 1}


async def test_what_is_there_later_is_no_refusal(tmp_path: Path) -> None:
    bench = await make_bench(tmp_path)
    bench.start(pull_request(0))
    await bench.settle()
    await waits_of(bench).stop()
    assert [answer.code for answer in bench.connection.take_answers()] == [ResponseCode.PULL_NOT_FOUND]
    assert refused(bench) == {}


async def test_an_acknowledgement_whose_record_is_not_committed(tmp_path: Path) -> None:
    bench = await make_pop_bench(tmp_path)
    await bench.put(b"a")
    (popped,) = await bench.pop()
    bench.log.auto_commit = False
    bench.start(bench.ack_request(popped))
    await bench.settle()
    assert refused(bench) == {}
    bench.log.fail(PutStatus.UNKNOWN_ERROR)
    (answer,) = bench.connection.take_answers()
    assert refused(bench) == {(RequestCode.ACK_MESSAGE, answer.code): 1}
    bench.log.auto_commit = True
    await bench.stop()


async def test_an_acknowledgement_that_holds_nothing_and_whose_answer_nobody_wants(
    tmp_path: Path,
) -> None:
    bench = await make_pop_bench(tmp_path)
    await bench.put(b"a")
    (popped,) = await bench.pop()
    await bench.ack(popped)
    request = bench.ack_request(popped)
    request.flag = ONEWAY_FLAG
    bench.start(request)
    await bench.settle()
    assert bench.connection.take_answers() == []
    assert refused(bench) == {(RequestCode.ACK_MESSAGE, ResponseCode.NO_MESSAGE): 1}
    await bench.stop()


async def test_a_recall_that_finds_no_message(tmp_path: Path) -> None:
    bench = await make_timer_bench(tmp_path, recallMessageEnable=True)
    router = bench.parts.router
    router.register(RequestCode.RECALL_MESSAGE, bench.recall_processor.handle)
    handle = (await bench.send(b"a", TIMER_DELAY_SEC=5)).ext_fields["recallHandle"]
    for _ in range(2):
        ext = {"topic": "t", "recallHandle": handle, "producerGroup": "p"}
        request = RemotingCommand(RequestCode.RECALL_MESSAGE, 9, ext_fields=ext)
        router.dispatch([(bench.sender.as_connection, [request], request.code)])
        await bench.settle()
    codes = [answer.code for answer in bench.sender.take_answers()]
    assert codes == [ResponseCode.SUCCESS, ResponseCode.ILLEGAL_OPERATION]
    assert router.counts.refused == {(RequestCode.RECALL_MESSAGE, ResponseCode.ILLEGAL_OPERATION): 1}
    await bench.stop()


def test_no_answer_passes_the_router_by() -> None:
    """Only sends have frames of their own, and count what they refuse beside them."""
    found = {
        str(path.relative_to(SOURCES))
        for path in SOURCES.rglob("*.py")
        if path != SENDS and re.search(r"connection\.send(_bytes)?\(|counts\.refuse\(", path.read_text())
    }
    assert found == set()
