"""Two name servers: stock clients, brokers and the gRPC endpoint go on when one of them dies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from remoting.client.aio import RemotingClient
from remoting.errors import RemotingError
from tests.integration.client_runs import (
    Driver,
    Report,
    finish,
    grpc_python_driver,
    java_driver,
    python_driver,
    read_report,
)
from tests.integration.cluster import COMMAND, Cluster
from tests.integration.streams import find_broker
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.integration
SENDS = 50
STARTS_MAX = 12
LIMIT_S = 90.0
"""A stock client looks for routes every 30 s, a broker registers as often."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    own = Cluster(tmp_path)
    try:
        own.start(options=["--namesrvs", "2"], grpc=True)
        yield own
    finally:
        own.stop()


def options_of(name: str, **options: object) -> list[str]:
    """Options in the style of a client's driver."""
    if name == "java":
        return [f"{key}={value}" for key, value in options.items()]
    return [part for key, value in options.items() for part in (f"--{key.replace('_', '-')}", str(value))]


def run_command(cluster: Cluster, *arguments: str) -> str:
    """What `ledgermq` prints."""
    command = [str(COMMAND), *arguments, "--namesrv", cluster.namesrv]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def kill_first(cluster: Cluster) -> str:
    """The name of the name server that is killed."""
    first = next(iter(cluster.namesrvs))
    os.kill(cluster.namesrvs[first], signal.SIGKILL)
    return first


def acknowledged(report: Report) -> list[int]:
    return [row["number"] for row in report if row["status"] not in ("ERROR", "FAILED")]


async def wait_sends(out: Path, count: int) -> None:
    """So many more are acknowledged than are now."""
    wanted = len(acknowledged(read_report(out))) + count
    await asyncio.to_thread(
        wait_for, f"{wanted} sends", lambda: len(acknowledged(read_report(out))) >= wanted, LIMIT_S
    )


@pytest.mark.parametrize("name", ["java", "python"])
async def test_stock_clients_go_on_without_a_name_server_and_find_the_next_leader(
    cluster: Cluster, name: str, tmp_path: Path
) -> None:
    driver = java_driver("5.5.0", tmp_path) if name == "java" else python_driver(tmp_path)
    given: dict[str, Any] = {"namesrv": cluster.namesrv, "topic": f"Two{name}"}
    out, stop = tmp_path / "sends.jsonl", tmp_path / "stop"
    producer = driver.start(
        ["stream", *options_of(name, **given, group="TwoProducers", out=out, stop=stop)], out
    )
    try:
        await wait_sends(out, SENDS)
        kill_first(cluster)
        await wait_sends(out, SENDS)
        cluster.kill(cluster.wait_leader())
        await wait_sends(out, SENDS)
    finally:
        stop.touch()
        sent = acknowledged(await asyncio.to_thread(finish, producer, out))
    consumed = await asyncio.to_thread(consume, driver, name, given, len(sent))
    assert set(sent) <= {int(row["number"]) for row in consumed}, "a consumer that starts without the first"


def consume(driver: Driver, name: str, given: dict[str, Any], count: int) -> Report:
    """A consumer that starts now. Java's gives up when the name server that it asks first is down, and begins
    with any of them: whoever starts it does so again.
    """
    for _ in range(STARTS_MAX if name == "java" else 0):
        with suppress(AssertionError):
            return consume_once(driver, name, given, count)
    return consume_once(driver, name, given, count)


def consume_once(driver: Driver, name: str, given: dict[str, Any], count: int) -> Report:
    out = driver.folder / "consumed.jsonl"
    quiet = {"quiet_ms": 3000, "limit_ms": 60_000} if name == "java" else {"quiet_s": 3, "limit_s": 60}
    arguments = options_of(name, **given, group="TwoConsumers", out=out, count=count, **quiet)
    return driver.run(["consume", *arguments], out)


async def test_commands_and_the_grpc_endpoint_need_one_of_them(cluster: Cluster, tmp_path: Path) -> None:
    """The endpoint is asked for a topic that it has not seen before."""
    kill_first(cluster)
    run_command(cluster, "topic", "create", "TwoGrpc")
    silent, other = cluster.namesrv.split(";")
    namesrvs = json.loads(run_command(cluster, "status", "--json"))["namesrvs"]
    assert {each["address"]: each["state"] for each in namesrvs} == {silent: "down", other: "up"}
    assert silent in run_command(cluster, "doctor"), "a warning, which names it"
    driver, out = grpc_python_driver(tmp_path), tmp_path / "sent.jsonl"
    arguments = ["send", f"endpoint={cluster.grpc}", "topic=TwoGrpc", "group=none", "count=5", f"out={out}"]
    report = await asyncio.to_thread(driver.run, arguments, out)
    assert [row["body"] for row in report if row["event"] == "sent"] == ["0", "1", "2", "3", "4"]


async def test_a_name_server_that_comes_back_empty_gets_the_routes_again(tmp_path: Path) -> None:
    """It keeps nothing on its disk but the key-value table."""
    own, client = Cluster(tmp_path), RemotingClient()
    try:
        own.start(options=["--namesrvs", "2"], restart=True)
        for name, address in zip(own.namesrvs, own.namesrv.split(";"), strict=True):
            assert await find_broker(client, address) is not None, f"brokers have registered with {name} too"
        address = own.namesrv.split(";")[0]
        name = kill_first(own)
        await asyncio.to_thread(wait_for, "another process", lambda: is_another(own, name), LIMIT_S)
        while await answered(client, address) is None:
            await asyncio.sleep(0.5)
    finally:
        await client.close()
        own.stop()


def is_another(cluster: Cluster, name: str) -> bool:
    return f"{name} is started again" in (cluster.folder / "up-0.err").read_text(encoding="utf-8")


async def answered(client: RemotingClient, address: str) -> str | None:
    with suppress(RemotingError):
        return await find_broker(client, address)
    return None
