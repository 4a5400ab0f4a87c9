"""The image, built and started: the cluster of docker/compose.yaml, each service in a container of its own
with a read-only root.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import httpx
import psutil
import pytest

from tests.integration.checks import assert_each_exactly_once
from tests.integration.client_runs import need, python_driver
from tests.integration.messages import samples
from tests.integration.test_compose import BROKERS, LIMIT_S, STOP_LIMIT_S, Composed
from tests.integration.test_python_client import PythonClient
from tests.integration.test_wheel import packages
from tests.integration.waiting import answers, wait_for
from tests.support.image import Image, build, missing

pytestmark = pytest.mark.integration
OWN_MB_MAX = 120
"""Of what is added to the base: LedgerMQ and the Python packages that it needs."""
USER = 10001
MEMBERS = re.compile(r"ledgermq cluster init .*?(?= \|\|)")


@pytest.fixture(scope="module")
def image() -> Image:
    lacking = missing()
    need("image", lacking is None, f"{lacking} (scripts/setup image)")
    return build()


class Contained(Composed):
    """The services of the compose file in containers; /data is /data there."""

    def __init__(self, folder: Path, image: Image) -> None:
        super().__init__(folder)
        self._image = image
        for each in (folder / "group", *(folder / "group").rglob("*")):
            os.chown(each, USER, USER)

    def run(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """To its end, with the folder of all at /data."""
        command = self._image.command(words, self._folder / "group")
        return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)

    def init(self) -> None:
        """As the service `members`, without its root."""
        (command,) = MEMBERS.findall(self.services["members"]["command"].replace("/group", "/data"))
        made = self.run(shlex.split(command))
        assert made.returncode == 0, made.stderr

    def _command(self, name: str, words: list[str]) -> list[str]:
        return self._image.command(self._addressed(name, words), self.data(name))

    def process(self, name: str) -> psutil.Process:
        """The container's process 1."""
        (first,) = psutil.Process(self._running[name].pid).children()
        return first

    def stop(self) -> None:
        for process in self._running.values():
            if process.poll() is None:
                process.kill()
            process.wait(STOP_LIMIT_S)

    def end(self, name: str) -> int:
        """Stops it as a container runtime does; the exit code of the container."""
        self.process(name).terminate()
        return self._running[name].wait(STOP_LIMIT_S)

    def leader(self) -> str | None:
        """The broker that takes messages."""
        for name in BROKERS:
            text = httpx.get(f"http://{self.address(name)}:10916/metrics", timeout=LIMIT_S).text
            if "\nledgermq_writable 1.0\n" in text:
                return name
        return None

    def is_ready(self, name: str) -> bool:
        assert self._running[name].poll() is None, self.log(name).read_text()[-4000:]
        return answers(f"http://{self.address(name)}:10916/ready")


@pytest.fixture
def contained(tmp_path: Path, image: Image) -> Iterator[Contained]:
    made = Contained(tmp_path, image)
    try:
        yield made
    finally:
        made.stop()


def test_a_cluster_in_containers_serves_a_stock_client_and_stops_cleanly(
    contained: Contained, tmp_path: Path
) -> None:
    contained.init()
    for name in ("namesrv", *BROKERS):
        contained.start(name)
    for name in BROKERS:
        wait_for(f"{name} is ready", partial(contained.is_ready, name), LIMIT_S)

    client = PythonClient(python_driver(tmp_path), f"{contained.address('namesrv')}:9876")
    sent = client.call("produce", "Contained", "ContainedProducer", sync=3)
    assert [report["status"] for report in sent] == [0, 0, 0]
    received = client.call("consume", "Contained", "ContainedConsumer", count=3)
    assert_each_exactly_once(received, samples(sync=3))

    for name in ("namesrv", *BROKERS):
        status = Path(f"/proc/{contained.process(name).pid}/status").read_text(encoding="utf-8")
        facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert facts["Uid"].split() == [str(USER)] * 4
        assert int(facts["CapEff"], 16) == int(facts["CapBnd"], 16) == 0
        assert facts["NoNewPrivs"] == "1"
        assert facts["NSpid"].split()[-1] == "1", "it gets the signals itself"
    leader = wait_for("one leads", contained.leader, LIMIT_S)
    for name in (leader, *(each for each in (*BROKERS, "namesrv") if each != leader)):
        assert contained.end(name) == 0, contained.log(name).read_text()[-4000:]
    logs = {name: contained.log(name).read_text() for name in BROKERS}
    handed = f"{leader} hands over"
    assert any(handed in log for log in logs.values()), "without an election time-out"
    for log in logs.values():
        assert "compiled modules: _log, _remoting" in log
        assert not re.search(r"\b(ERROR|CRITICAL)\b|Traceback", log), log


def test_its_root_cannot_be_changed_and_its_user_is_not_root(image: Image, contained: Contained) -> None:
    assert image.config["User"] == str(USER)
    assert image.config["StopSignal"] == "SIGTERM"
    assert set(image.config["Volumes"]) == {"/data"}
    assert image.config["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
    refused = contained.run(("sh", "-c", "touch /data/there && touch /opt/ledgermq/more"))
    assert refused.returncode != 0
    assert "Read-only file system" in refused.stderr
    assert (contained.data("n0").parent / "there").exists(), "only /data can be written to"


def test_it_holds_what_it_runs_and_nothing_else(image: Image) -> None:
    own = image.root / "opt" / "ledgermq"
    (libraries,) = own.glob("lib/python3.*/site-packages")
    there = {path.name for path in libraries.iterdir()}
    assert set(packages()) <= there
    assert not there & {"pip", "setuptools", "tests", "bench", "docs", "hatchling", "grpc_tools", "pytest"}
    left = ("data/*", "tmp/*", "run/*", "src", "root/.cache", "usr/bin/*gcc*", "opt/**/*.key")
    assert [path for pattern in left for path in image.root.glob(pattern)] == []
    pip_settings = image.root / "etc" / "pip.conf"
    assert not pip_settings.exists() or pip_settings.read_bytes() == b"", "where it lay while pip ran"
    megabytes = sum(path.lstat().st_size for path in own.rglob("*")) / 1e6
    assert megabytes < OWN_MB_MAX


def test_its_bill_of_materials_names_what_it_holds(image: Image) -> None:
    own = image.root / "opt" / "ledgermq"
    bill = json.loads((own / "image.cdx.json").read_text(encoding="utf-8"))
    assert bill["bomFormat"] == "CycloneDX"
    named = {each["purl"].partition("@")[0] for each in bill["components"] if "purl" in each}
    named.add(bill["metadata"]["component"]["purl"].partition("@")[0])
    installed = {re.sub(r"[-_.]+", "-", path.name.split("-")[0]).lower() for path in own.rglob("*.dist-info")}
    assert {f"pkg:pypi/{name}" for name in installed} <= named
    status = (image.root / "var/lib/dpkg/status").read_text(encoding="utf-8")
    assert {f"pkg:deb/debian/{name}" for name in re.findall(r"^Package: (\S+)$", status, re.M)} <= {
        name.replace("%2B", "+") for name in named
    }
