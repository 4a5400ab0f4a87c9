"""The cluster of docker/compose.yaml without Docker: its commands are run as they stand there, with folders
in place of volumes, and an address of loopback in place of each container's.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from remoting.client.blocking import Connection
from tests.integration.client_runs import ROOT
from tests.integration.cluster import COMMAND
from tests.integration.test_name_server_rights import NO_PERMISSION, registration
from tests.integration.waiting import wait_for
from tests.support.children import ending_with_parent

pytestmark = pytest.mark.integration
LIMIT_S = 60.0
STOP_LIMIT_S = 20.0
TOKEN = "a-token-of-thirty-characters"
NET = "172.30.98."
BROKERS = ("n0", "n1", "n2")


class Composed:
    """The services of the file. The volumes of brokers and name server lie in that of `members`, as there."""

    def __init__(self, folder: Path) -> None:
        text = (ROOT / "docker/compose.yaml").read_text(encoding="utf-8")
        pid = os.getpid()  # another run of this test has other addresses
        self._net = f"127.{64 + pid % 128}.{pid // 128 % 256}."
        self.services: Mapping[str, Any] = yaml.safe_load(text.replace(NET, self._net))["services"]
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._environment = os.environ | {
            "PATH": f"{COMMAND.parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "LEDGERMQ_ADMIN_TOKENS": f"me:admin:{TOKEN}",
        }
        for name in (*BROKERS, "namesrv", "admin", "grpc"):
            self.data(name).mkdir(parents=True)

    def data(self, name: str) -> Path:
        """What the service has at /data."""
        return self._folder / "group" / name

    def scraped(self, job: str) -> list[str]:
        """What Prometheus reads for this job."""
        text = (ROOT / "docker/prometheus/prometheus.yml").read_text(encoding="utf-8").replace(NET, self._net)
        (found,) = (each for each in yaml.safe_load(text)["scrape_configs"] if each["job_name"] == job)
        return [target for group in found["static_configs"] for target in group["targets"]]

    def address(self, name: str) -> str:
        return str(self.services[name]["networks"]["ledgermq"]["ipv4_address"])

    def init(self) -> None:
        """The service `members`, to its end."""
        command = self.services["members"]["command"].replace("/group", str(self._folder / "group"))
        command = command.replace("chown -R ledgermq", f"chown -R {os.getuid()}")
        subprocess.run(shlex.split(command), env=self._environment, check=True, timeout=LIMIT_S)
        for name in BROKERS:
            config = self.data(name) / "broker.toml"
            config.write_text(config.read_text().replace('"/data', f'"{self.data(name)}'))

    def start(self, name: str) -> None:
        command = self._command(name, shlex.split(self.services[name]["command"]))
        with self.log(name).open("wb") as log:
            self._running[name] = subprocess.Popen(command, env=self._environment, stderr=log, cwd="/")

    def log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def is_healthy(self, name: str) -> bool:
        assert self._running[name].poll() is None, self.log(name).read_text()[-4000:]
        kind, *command = self.services[name]["healthcheck"]["test"]
        assert kind == "CMD"
        checked = subprocess.run(self._here(name, command), env=self._environment, capture_output=True)
        return checked.returncode == 0

    def _command(self, name: str, words: list[str]) -> list[str]:
        """Runs what the service has to run."""
        return ending_with_parent(self._here(name, words))

    def _here(self, name: str, words: list[str]) -> list[str]:
        return [word.replace("/data", str(self.data(name))) for word in self._addressed(name, words)]

    def _addressed(self, name: str, words: list[str]) -> list[str]:
        address = self.address(name)
        return [word.replace("0.0.0.0", address).replace("127.0.0.1", address) for word in words]

    def stop(self) -> None:
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            process.wait(STOP_LIMIT_S)

    def ledgermq(self, *words: str, text: str = "") -> str:
        """The command line, on a machine that reaches the containers."""
        namesrv = f"{self.address('namesrv')}:9876"
        ran = subprocess.run(
            [str(COMMAND), *words, "--namesrv", namesrv],
            env=self._environment,
            input=text,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout


@pytest.fixture
def composed(tmp_path: Path) -> Iterator[Composed]:
    made = Composed(tmp_path)
    try:
        yield made
    finally:
        made.stop()


def test_the_file_makes_a_cluster_whose_members_know_each_other(composed: Composed) -> None:
    composed.init()
    composed.init()  # a second start changes nothing
    composed.start("namesrv")
    wait_for("namesrv is healthy", lambda: composed.is_healthy("namesrv"), LIMIT_S)
    for name in (*BROKERS, "admin", "grpc"):
        composed.start(name)
    for name in (*BROKERS, "admin", "grpc"):
        wait_for(f"{name} is healthy", partial(composed.is_healthy, name), LIMIT_S)

    headers = {"Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=f"http://{composed.address('admin')}:8080", headers=headers) as http:
        wait_for("the cluster is writable", lambda: http.get("/readyz").status_code == 200, LIMIT_S)
        (group,) = http.get("/api/v1/cluster").json()["groups"]
        assert {node["id"]: node["state"] for node in group["nodes"]} == dict.fromkeys(BROKERS, "up")
    composed.ledgermq("produce", "Composed", text="one\ntwo\n")
    read = composed.ledgermq("consume", "Composed", "--count", "2")
    assert sorted(read.splitlines()) == ["one", "two"]
    for job, prefix in (("ledgermq", "ledgermq_"), ("ledgermq-grpc", "ledgermq_grpc_")):
        for target in composed.scraped(job):
            assert prefix in httpx.get(f"http://{target}/metrics", timeout=LIMIT_S).text, target
    with Connection(f"{composed.address('namesrv')}:9876", LIMIT_S) as stranger:
        assert stranger.invoke(registration(f"{composed.address('admin')}:10911")).code == NO_PERMISSION
    assert "closing the replication connection" not in "".join(
        composed.log(name).read_text() for name in BROKERS
    )
