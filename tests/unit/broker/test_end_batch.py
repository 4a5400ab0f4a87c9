"""The end of a batch at a leader: what differs is named, and a writer that is done takes no place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from broker.send import sequenced
from broker.send.sequenced import EndBatchProcessor
from broker.state.state import ReplicatedState
from commitlog.sequences import FIRST_DIGEST, next_digest
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import RequestError
from remoting.headers.send import BatchEnd
from tests.support.broker_parts import NOW_MS
from tests.support.send_bench import Bench, make_bench
from tests.support.sequenced import batch_body, sequenced_send


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    return await make_bench(tmp_path)


def digest_of(*bodies: bytes) -> bytes:
    digest = FIRST_DIGEST
    for body in bodies:
        digest = next_digest(digest, batch_body([body]))
    return digest


async def end(bench: Bench, body: bytes) -> RemotingCommand:
    core = bench.parts.core
    processor = EndBatchProcessor(core.log, core.state, core.readiness, bench.processor.sequencing)
    request = RemotingCommand(RequestCode.LEDGERMQ_END_BATCH, 9, body=body)
    return await processor.end_batch(request, bench.connection.as_connection)


async def test_the_digest_stands_in_the_records_and_follows_from_them(bench: Bench) -> None:
    await bench.answer(sequenced_send(0, [b"a", b"b"], digest=FIRST_DIGEST.decode()))
    expected = b"LEDGERMQ_SEQ\x01w|0|1|1\x02LEDGERMQ_SUM\x01%b\x02UNIQ_KEY\x01k\x02" % digest_of(b"a", b"b")
    assert bench.stored[1].properties.startswith(expected)
    progress = bench.parts.state.writers.get(b"w|0")
    assert progress is not None
    assert progress.digest == digest_of(b"a", b"b")
    state = ReplicatedState(bench.parts.config, bench.log.reopened(), lambda: NOW_MS)
    state.restore()
    await state._log.start()
    assert state.writers.get(b"w|0") == progress


async def test_other_rows_are_refused_and_stored_nowhere(bench: Bench) -> None:
    await bench.answer(sequenced_send(0, [b"a", b"b"], digest=FIRST_DIGEST.decode()))
    answer = await bench.answer(sequenced_send(0, [b"a", b"x", b"c"], digest=FIRST_DIGEST.decode()))
    assert answer.code == ResponseCode.LEDGERMQ_SEQUENCE_DIFFERS
    answer = await bench.answer(sequenced_send(2, [b"c"], digest=digest_of(b"a", b"x").decode()))
    assert answer.code == ResponseCode.LEDGERMQ_SEQUENCE_DIFFERS
    assert [message.body for message in bench.stored] == [b"a", b"b"]
    answer = await bench.answer(sequenced_send(1, [b"b", b"c"], digest=digest_of(b"a").decode()))
    assert (answer.code, answer.ext_fields["repeats"]) == (0, "1")


@pytest.mark.parametrize("digest", ["", "0", "g" * 16, "1" * 16])
async def test_what_is_no_digest_is_refused(bench: Bench, digest: str) -> None:
    answer = await bench.answer(sequenced_send(0, [b"a"], digest=digest))
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert bench.stored == []


async def test_the_end_is_good_or_names_what_differs(bench: Bench) -> None:
    await bench.answer(sequenced_send(0, [b"a", b"b"], digest=FIRST_DIGEST.decode()))
    right = {"w": {0: (2, digest_of(b"a", b"b"))}, "unused": {}}
    assert (await end(bench, BatchEnd(1, right).body())).code == 0
    with pytest.raises(RequestError, match="batch 1: partition 0 has 1 rows, and 2 are in the log") as caught:
        await end(bench, BatchEnd(1, {"w": {0: (1, digest_of(b"a"))}}).body())
    assert caught.value.code == ResponseCode.LEDGERMQ_SEQUENCE_DIFFERS
    with pytest.raises(RequestError, match="partition 0 has 0 rows"):
        await end(bench, BatchEnd(1, {"w": {}}).body())
    bench.log.set_writable(False)
    with pytest.raises(RequestError, match="only the leader knows") as caught:
        await end(bench, BatchEnd(1, right).body())
    assert caught.value.code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_a_writer_that_is_over_is_so_on_every_node_behind_what_it_wrote(bench: Bench) -> None:
    await bench.answer(sequenced_send(0, [b"a"]))
    await bench.answer(sequenced_send(0, [b"a"], writer_id="other"))
    written = {"w": {0: (1, b"")}, "nothing": {}}
    assert (await end(bench, BatchEnd(1, written, is_checked=False, is_over=True).body())).code == 0
    rows = list(bench.parts.state.writers.rows())
    assert [(row[0], row[-1]) for row in rows] == [("other|0", False), ("w|0", True)]
    state = ReplicatedState(bench.parts.config, bench.log.reopened(), lambda: NOW_MS)
    state.restore()
    await state._log.start()  # all of the log as one stretch
    assert list(state.writers.rows()) == rows
    await bench.answer(sequenced_send(0, [b"a"]))
    assert len(bench.stored) == 2, "a late try is still known"


async def test_many_writers_are_ended_by_several_records(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequenced, "ENDED_AT_ONCE", 2)
    names = [f"w{number}" for number in range(5)]
    for name in names:
        await bench.answer(sequenced_send(0, [b"a"], writer_id=name))
    before = len(bench.log.put_calls)
    over = {name: {0: (1, b"")} for name in names}
    assert (await end(bench, BatchEnd(1, over, is_checked=False, is_over=True).body())).code == 0
    assert len(bench.log.put_calls) == before + 3
    assert [row[-1] for row in bench.parts.state.writers.rows()] == [True] * 5


BAD_WRITERS: list[Any] = [
    {"a|b": {}},
    {"w": {"x": [1, ""]}},
    {"w": {"-1": [1, ""]}},
    {"w": {"0": [1]}},
    {"w": {"0": [1, "zz"]}},
    {"w": 5},
]
BAD_ENDS = [
    orjson.dumps({"batchId": 1, "isChecked": True, "isOver": True, "writers": writers})
    for writers in BAD_WRITERS
]


@pytest.mark.parametrize("body", [b"", b"[]", b'{"batchId": 1}', *BAD_ENDS])
async def test_a_bad_end_is_refused(bench: Bench, body: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        await end(bench, body)
    assert caught.value.code == ResponseCode.INVALID_PARAMETER
