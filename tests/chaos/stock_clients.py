"""Stock producers and push consumers beside our own clients; their reports become part of the history."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.chaos.cluster import eventually
from tests.chaos.run import Run
from tests.chaos.workload import now_us
from tests.histories.operations import Poll, Send
from tests.histories.stock_clients import polls_of, sends_of
from tests.integration.client_runs import Driver, java_driver, python_driver, read_report
from tests.integration.messages import Sample

REFRESH_S = 0.5
START_LIMIT_S = 90.0
CONSUMED_LIMIT_S = 120.0
STOP_LIMIT_S = 30.0


@dataclass(slots=True)
class StockClient:
    """A producer and a consumer of one kind, as processes that run."""

    name: str
    folder: Path
    producer: subprocess.Popen[bytes]
    began_ms: int
    consumer: subprocess.Popen[bytes] | None = None

    @property
    def sends(self) -> Path:
        return self.folder / "sends.jsonl"

    @property
    def consumed(self) -> Path:
        return self.folder / "consumed.jsonl"

    @property
    def stop_file(self) -> Path:
        return self.folder / "stop"

    def value(self, number: int) -> str:
        return Sample("stream" if self.name == "java" else "pystream", number).body

    def succeeded(self) -> set[str]:
        return {self.value(row["number"]) for row in read_report(self.sends) if is_ok(row)}

    def received(self) -> set[str]:
        return {row["body"] for row in read_report(self.consumed)}


def is_ok(row: dict[str, Any]) -> bool:
    return row["status"] in ("SEND_OK", 0)


class StockClients:
    """Those of one run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._clients: list[StockClient] = []

    async def start(self, name: str) -> None:
        """Start a producer, and a consumer once the producer works: its topic is known then."""
        folder = self._run.cluster.folder / name
        folder.mkdir()
        driver = DRIVERS[name](folder)
        load = self._run.load
        stream, consume = OPTIONS[name](load.namesrv, load.topic, folder)
        client = StockClient(name, folder, driver.start(stream, folder / "sends.jsonl"), now_us() // 1000)
        self._clients.append(client)

        async def sends() -> bool:
            assert client.producer.poll() is None, (folder / "sends.log").read_text(errors="replace")[-2000:]
            return len(client.succeeded()) >= 20

        await eventually(f"the {name} producer works", sends, START_LIMIT_S, REFRESH_S)
        client.consumer = driver.start(consume, client.consumed)

        async def consumes() -> bool:
            return len(client.received()) >= 20

        await eventually(f"the {name} consumer works", consumes, START_LIMIT_S, REFRESH_S)

    async def finish(self) -> None:
        """Producers end; all that they saw succeed must be consumed; then all goes into the history."""
        for client in self._clients:
            client.stop_file.touch()
            assert await _end(client.producer) == 0, (client.folder / "sends.log").read_text()[-2000:]
            wanted = client.succeeded()

            async def all_consumed(client: StockClient = client, wanted: set[str] = wanted) -> bool:
                return wanted <= client.received()

            await eventually(f"the {client.name} consumer got all", all_consumed, CONSUMED_LIMIT_S, REFRESH_S)
            self._write(client)

    def _write(self, client: StockClient) -> None:
        """The reports as operations, in the times of the history."""
        topic, span = self._run.load.topic, (client.began_ms, now_us() // 1000)
        sends = sends_of(read_report(client.sends), f"{client.name}-p", topic, span, tries=TRIES[client.name])
        polls = polls_of(read_report(client.consumed), f"{client.name}-c", topic, span)
        operations: list[Send | Poll] = [*sends, *polls]
        for operation in operations:
            completed = None if operation.completed is None else operation.completed * 1000
            done = replace(operation, invoked=operation.invoked * 1000, completed=completed)
            self._run.load.history.write(done)

    async def stop(self) -> None:
        """End whatever still runs."""
        for client in self._clients:
            for process in (client.producer, client.consumer):
                if process is not None and process.poll() is None:
                    process.terminate()
                    await _end(process)


TRIES: dict[str, int | None] = {"java": 1, "python": None}
"""The Java producer tries once, the library of the Python client does not say how often it does."""


async def _end(process: subprocess.Popen[bytes]) -> int:
    """The exit code; killed when it does not end."""

    async def has_ended() -> bool:
        return process.poll() is not None

    try:
        await eventually("the client ends", has_ended, STOP_LIMIT_S)
    except AssertionError:
        process.kill()
    return await asyncio.to_thread(process.wait)


def _java_options(namesrv: str, topic: str, folder: Path) -> tuple[list[str], list[str]]:
    common = [f"namesrv={namesrv}", f"topic={topic}", f"group=ChaosJava{topic}", "poll_ms=1000"]
    stream = ["stream", *common, f"out={folder / 'sends.jsonl'}", f"stop={folder / 'stop'}"]
    limits = ["count=1000000000", "limit_ms=100000000"]
    return stream, ["consume", *common, *limits, f"out={folder / 'consumed.jsonl'}"]


def _python_options(namesrv: str, topic: str, folder: Path) -> tuple[list[str], list[str]]:
    common = ["--namesrv", namesrv, "--topic", topic, "--group", f"ChaosPython{topic}"]
    stream = ["stream", *common, "--out", str(folder / "sends.jsonl"), "--stop", str(folder / "stop")]
    limits = ["--count", "1000000000", "--limit-s", "100000"]
    return stream, ["consume", *common, *limits, "--out", str(folder / "consumed.jsonl")]


def _newest_java(folder: Path) -> Driver:
    return java_driver("5.5.0", folder)


DRIVERS: dict[str, Callable[[Path], Driver]] = {"java": _newest_java, "python": python_driver}
OPTIONS: dict[str, Callable[[str, str, Path], tuple[list[str], list[str]]]] = {
    "java": _java_options,
    "python": _python_options,
}


@asynccontextmanager
async def stock_clients(run: Run, names: Sequence[str]) -> AsyncIterator[StockClients]:
    """Producers and consumers of these kinds at work; they have ended when the context is left."""
    clients = StockClients(run)
    try:
        for name in names:
            await clients.start(name)
        yield clients
    finally:
        await clients.stop()
