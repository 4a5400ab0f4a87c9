"""Commands that run for long say how far they came, whichever signal ends them."""

import asyncio
import os
import pty
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.polling import until
from tests.unit.ledgermq.fake_broker import TOPIC, FakeBroker, serving
from tests.unit.ledgermq.test_load_run import LoadBroker

LIMIT_S = 60.0
PROGRAM = "from ledgermq.cli import main; main()"
ROOT = Path(__file__).parents[3]
SIGNALS = pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)


def _take_interrupts() -> None:
    """A shell script starts what runs in its background with SIGINT ignored, and a child inherits that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@asynccontextmanager
async def running(*args: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, *args),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        preexec_fn=_take_interrupts,
    )
    try:
        async with asyncio.timeout(LIMIT_S):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@SIGNALS
async def test_produce(number: signal.Signals, code: int) -> None:
    broker = FakeBroker(queue_count=1)
    async with (
        serving(broker),
        running(
            "produce", TOPIC, "--namesrv", broker.address, "--count", "99999", "--rate", "100"
        ) as process,
    ):
        await until(lambda: len(broker.sends) > 3)
        process.send_signal(number)
        _, said = await process.communicate()
    count, _, rest = said.decode().partition(" acknowledged in ")
    assert (process.returncode, rest.count("0 failed"), "Traceback" in rest) == (code, 1, False), said
    assert 3 <= int(count) <= len(broker.queues[0])


async def test_produce_names_what_had_no_answer() -> None:
    broker = FakeBroker()
    broker.answers.clear()
    sends = ("--count", "99", "--in-flight", "7")
    async with (
        serving(broker),
        running("produce", TOPIC, "--namesrv", broker.address, *sends) as process,
    ):
        await until(lambda: len(broker.sends) == 7)
        process.terminate()
        _, said = await process.communicate()
        broker.answers.set()
    assert said.decode().startswith("0 acknowledged in ")
    assert said.decode().endswith("0 failed, 7 without an answer, which may be stored.\n")


@SIGNALS
async def test_consume_stores_the_offsets_of_what_it_printed(number: signal.Signals, code: int) -> None:
    broker = FakeBroker(queue_count=1)
    for each in range(3):
        broker.put(0, b"message %d" % each)
    async with serving(broker), running("consume", TOPIC, "--namesrv", broker.address) as process:
        assert process.stdout is not None
        lines = [await process.stdout.readline() for _ in range(3)]
        process.send_signal(number)
        _, said = await process.communicate()
    assert lines == [b"message %d\n" % each for each in range(3)]
    assert (process.returncode, said.decode().endswith("3 messages.\n")) == (code, True), said
    assert broker.offsets == {0: 3}


@SIGNALS
async def test_bench_deletes_its_topic(number: signal.Signals, code: int) -> None:
    broker = LoadBroker(queue_count=8)
    async with serving(broker), running("bench", "--namesrv", broker.address) as process:
        await until(lambda: len(broker.sends) > 100)
        process.send_signal(number)
        _, said = await process.communicate()
    assert (process.returncode, b"Traceback" in said) == (code, False), said
    assert broker.deleted == [topic for topic in broker.topics if topic.startswith("LedgerMQBench-")]
    assert len(broker.deleted) == 1


def test_watch_leaves_the_terminal_as_it_was() -> None:
    """It has a screen of its own, which it leaves (the sequence 1049l)."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"PYTHONPATH": str(ROOT), "TERM": "xterm"}
        os.execv(sys.executable, [sys.executable, "-c", PROGRAM, "watch", "--namesrv", "127.0.0.1:1"])
    try:
        read_until(terminal, b"name server")
        os.kill(pid, signal.SIGTERM)
        assert b"\x1b[?1049l" in read_until(terminal, b"\x1b[?1049l")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 143
    finally:
        os.close(terminal)


def read_until(terminal: int, wanted: bytes) -> bytes:
    """What came up to it; the end of the terminal where it did not come."""
    found = b""
    while wanted not in found:
        try:
            found += os.read(terminal, 65_536)
        except OSError:
            break
    return found
