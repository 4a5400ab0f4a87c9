"""Transactions of the unchanged Java client, 5.x and 4.9.x, with and without the leader dying, and of others.

How a transaction ends follows from its number, as in Transact.java. What is asserted is the log itself: each
committed message once, and nothing else.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.programs import versions
from tests.integration.client_runs import (
    Driver,
    Report,
    finish,
    go_driver,
    java_driver,
    python_driver,
    read_report,
)
from tests.integration.cluster import Cluster
from tests.integration.messages import Sample
from tests.integration.streams import read_all
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.integration
VERSIONS = ("5.5.0", "4.9.8")
GO = "go"
PYTHON = "python"
SETTINGS = {"transactionTimeOut": "1000", "transactionCheckInterval": "500"}
ROLLED_BACK = (1, 3)
KINDS = 6
DELIVERY_LIMIT_S = 60.0
QUIET_S = 3.0
"""Several rounds of checks, and the age from which a transaction is asked about."""


@pytest.fixture(scope="module")
def breakable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose nodes may be killed, and that asks early; each test leaves all three running."""
    cluster = Cluster(tmp_path_factory.mktemp("transactions"))
    try:
        cluster.start(SETTINGS)
        yield cluster
    finally:
        cluster.stop()


def driver_of(version: str, folder: Path) -> Driver:
    """That of Go's client, of Python's and C++'s, or of a version of Java's."""
    if version == GO:
        return go_driver(folder)
    if version == PYTHON:
        return python_driver(folder, "python_transactions")
    return java_driver(version, folder)


class Transactions:
    """A driver that sends transactions, and the files by which it is told what to do."""

    def __init__(self, cluster: Cluster, version: str, folder: Path, label: str) -> None:
        self.cluster = cluster
        self.topic = f"{label}{version.replace('.', '')}"
        self.version = version
        self.driver = driver_of(version, folder)
        self.out = folder / f"{self.topic}.jsonl"
        self.files = {name: folder / f"{self.topic}.{name}" for name in ("go", "stop", "end")}

    def start(self, **options: object) -> subprocess.Popen[bytes]:
        given = {"namesrv": self.cluster.namesrv, "topic": self.topic, "group": f"{self.topic}Producers"}
        given |= {"out": str(self.out), "end": str(self.files["end"])}
        prefix = "-" if self.version == GO else ""
        arguments = [f"{prefix}{name}={value}" for name, value in (given | options).items()]
        action = [] if self.version == PYTHON else ["transact"]
        return self.driver.start([*action, *arguments], self.out)

    def tell(self, name: str) -> None:
        self.files[name].touch()

    def events(self, kind: str) -> Report:
        return [line for line in read_report(self.out) if line["event"] == kind]

    def wait_events(self, kind: str, count: int, limit_s: float = 60.0) -> None:
        wait_for(f"{count} times {kind}", lambda: len(self.events(kind)) >= count, limit_s)

    def delivered(self) -> Counter[str]:
        records = asyncio.run(read_all(self.cluster.namesrv, self.topic))
        return Counter(record.body.decode() for record in records)

    def finish(self, process: subprocess.Popen[bytes]) -> None:
        """When every transaction that ran has ended: what was committed lies in the log once, the rest does
        not, and nothing more comes.
        """
        executed = [line["number"] for line in self.events("executing")]
        wanted = {Sample("transaction", n).body for n in executed if n % KINDS not in ROLLED_BACK}
        assert wanted
        what = "every committed transaction is delivered"
        wait_for(what, lambda: not wanted - self.delivered().keys(), DELIVERY_LIMIT_S)
        self.wait_quiet()
        self.tell("end")
        finish(process, self.out)
        delivered = self.delivered()
        assert delivered == Counter(wanted), (delivered - Counter(wanted), Counter(wanted) - delivered)

    def wait_quiet(self) -> None:
        """Nobody is asked any more: of no transaction is it still open how it ends."""

        def is_quiet() -> bool:
            before = len(self.events("checked"))
            time.sleep(QUIET_S)
            return before == len(self.events("checked"))

        wait_for("no more checks", is_quiet, DELIVERY_LIMIT_S)


@pytest.mark.parametrize("version", versions(VERSIONS))
def test_each_transaction_ends_as_its_producer_says(
    breakable: Cluster, version: str, tmp_path: Path, name: str
) -> None:
    run = Transactions(breakable, version, tmp_path, f"Plain{name}")
    process = run.start(count=120, threads=8)
    run.wait_events("sent", 1)
    run.finish(process)
    prepared = run.events("prepared")
    assert {line["status"] for line in prepared} == {"SEND_OK"}
    assert len(prepared) > 100  # a client whose first sends meet at a connection gives some up
    ids = {line["number"]: line["id"] for line in prepared}
    for check in run.events("checked"):
        assert check["topic"] == run.topic
        assert check["keys"] == f"key-transaction-{check['number']}"
        assert check["id"] == ids.get(check["number"], check["id"])
    asked = Counter(line["number"] for line in run.events("checked"))
    assert all(asked[number] >= (number % KINDS > 1) + (number % KINDS == 4) for number in ids), asked


@pytest.mark.parametrize("client", [GO, PYTHON])
def test_other_clients_end_their_transactions_too(
    breakable: Cluster, client: str, tmp_path: Path, name: str
) -> None:
    """A producer's second heartbeat comes after half a minute; perhaps it can be asked only then."""
    run = Transactions(breakable, client, tmp_path, f"Plain{name}")
    process = run.start(sync=60)
    run.wait_events("sent", 1)
    run.finish(process)
    assert len(run.events("prepared")) == 60
    assert {check["topic"] for check in run.events("checked")} == {run.topic}


@pytest.mark.parametrize("version", versions(VERSIONS))
@pytest.mark.parametrize("is_late", [False, True], ids=["lost", "late"])
def test_a_leader_that_dies_between_prepare_and_commit_costs_nothing(
    breakable: Cluster, version: str, is_late: bool, tmp_path: Path, name: str
) -> None:
    """What the producer says at once is lost with the leader, and it is asked. What it says late the new
    leader knows already, since it has asked.
    """
    run = Transactions(breakable, version, tmp_path, f"Killed{name}{int(is_late)}")
    process = run.start(count=24, threads=24, go=run.files["go"])
    wait_for("24 sends", lambda: len(run.events("executing") + run.events("failed")) == 24, 60.0)
    dead = breakable.wait_leader()
    breakable.kill(dead)
    if is_late:
        run.wait_events("checked", len(run.events("executing")))
    run.tell("go")
    breakable.wait_leader()
    breakable.restart(dead)
    run.finish(process)


@pytest.mark.parametrize("version", versions(VERSIONS))
def test_transactions_under_load_survive_their_leader(
    breakable: Cluster, version: str, tmp_path: Path, name: str
) -> None:
    run = Transactions(breakable, version, tmp_path, f"Load{name}")
    process = run.start(threads=8, stop=run.files["stop"])
    run.wait_events("prepared", 300)
    dead = breakable.wait_leader()
    breakable.kill(dead)
    before = len(run.events("prepared"))
    run.wait_events("prepared", before + 300)
    breakable.restart(dead)
    run.tell("stop")
    run.wait_events("sent", 1)
    run.finish(process)
