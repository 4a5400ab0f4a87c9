"""`ledgermq machine up`: what it refuses, what it runs, and that it starts again what ends."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ledgermq.local.foreground import locked
from ledgermq.local.supervisor import Command, Limits
from ledgermq.machines import run as machine_run
from ledgermq.machines.files import Cluster, write_machine, write_machines
from ledgermq.machines.plan import Counts, Machine, MachinesPlan, load_machine
from ledgermq.machines.run import LOCK_FILE, MachineProcesses
from ledgermq.machines.unit import notify
from sockets.listening import bound
from tests.support.polling import until
from tests.unit.ledgermq.running import CommandLine, Ran

QUICK = Limits(stop_s=5.0, restart_first_s=0.01, restart_max_s=0.04)
LISTENS = (
    "import socket, sys, time; there = socket.create_server((sys.argv[1], int(sys.argv[2]))); time.sleep(60)"
)
Up = Callable[[Path], Ran]


def free_port() -> int:
    with bound("127.0.0.1", 0) as there:
        return int(there.getsockname()[1])


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """The folder of a machine that is this one, at its place."""
    return write(tmp_path, "127.0.0.1")


def write(folder: Path, address: str, **options: int) -> Path:
    addresses = {"a": address}
    plan = MachinesPlan(addresses, Counts(1, 1, 1), folder / "a", **options)  # type: ignore[arg-type]
    write_machines(folder, plan, Path("/bin/true"))
    return folder / "a"


@pytest.fixture
def up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[[Path], Ran]:
    def never(self: MachineProcesses) -> None:
        raise AssertionError("it starts processes")

    monkeypatch.setattr(machine_run.MachineProcesses, "run", never)
    command_line = CommandLine(monkeypatch, capsys)
    return lambda home: command_line("machine", "up", "--home", str(home))


def refusal(ran: Ran) -> str:
    assert ran.code == 1
    return ran.err


def test_no_folder_of_a_machine(up: Up, tmp_path: Path) -> None:
    assert f"there is no {tmp_path / 'machine.toml'}" in refusal(up(tmp_path))


def test_another_place_than_was_planned(up: Up, made: Path, tmp_path: Path) -> None:
    made.rename(tmp_path / "elsewhere")
    assert f"name {made} as the folder of machine a" in refusal(up(tmp_path / "elsewhere"))


@pytest.mark.parametrize("name", ["ca.pem", "n0.key", "namesrv-a.pem"])
def test_a_missing_certificate(up: Up, made: Path, name: str) -> None:
    (made / "certificates" / name).unlink()
    assert f"{made / 'certificates' / name} cannot be read: No such file" in refusal(up(made))


def test_a_broker_toml_that_the_broker_refuses(up: Up, made: Path) -> None:
    with (made / "n0" / "broker.toml").open("a") as file:
        file.write("listenProt = 1\n")
    assert "listenProt" in refusal(up(made))


def test_the_folder_of_another_machine(up: Up, tmp_path: Path) -> None:
    said = refusal(up(write(tmp_path, "192.0.2.1")))
    assert "192.0.2.1 is no address of this machine" in said
    assert "has the files of machine a, which belong on another one" in said


def test_a_second_one_in_the_same_folder(up: Up, made: Path) -> None:
    with locked(made, file_name=LOCK_FILE):
        assert f"the machine a in {made} already runs (ledgermq machine up, pid " in refusal(up(made))


def test_a_port_in_use_is_named_with_its_purpose(up: Up, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        home = write(tmp_path, "127.0.0.1", grpc_port=0, admin_port=port)
        assert f"port {port} for the admin is in use on 127.0.0.1" in refusal(up(home))


def commands_of(home: Path) -> dict[str, str]:
    processes = MachineProcesses(load_machine(home), {"n0": 10911}, has_log_files=False)
    return {command.name: " ".join(command.argv) for command in processes.commands()}


def test_what_it_runs(made: Path) -> None:
    commands = commands_of(made)
    assert list(commands) == ["namesrv", "n0", "admin", "grpc"]
    assert f"--tls-cert {made}/certificates/namesrv-a.pem" in commands["namesrv"]
    assert "--tls-mode permissive" in commands["namesrv"]
    assert "--broker-identity broker-a=certificate:ledgermq://broker-a/n0," in commands["namesrv"]
    assert commands["n0"].endswith(f"broker --config {made}/n0/broker.toml")
    assert "--tokens" not in commands["admin"]
    assert "--broker-tls-ca" not in commands["admin"] + commands["grpc"]
    (made / "admin").mkdir()
    (made / "admin" / "tokens.toml").touch()
    assert f"--tokens {made}/admin/tokens.toml" in commands_of(made)["admin"]


def test_what_it_runs_with_tls_for_clients(made: Path) -> None:
    machine = load_machine(made)
    text = machine.model_copy(update={"client_tls": "enforcing"}).to_toml()
    (made / "machine.toml").write_text(text)
    commands = commands_of(made)
    assert "--tls-mode enforcing" in commands["namesrv"]
    assert (
        f"--tls-mode enforcing --metrics-address 127.0.0.1 --tls-cert {made}/certificates/n0.pem"
        in (commands["grpc"])
    )
    for name in ("admin", "grpc"):
        assert f"--broker-tls-ca {made}/certificates/ca.pem" in commands[name]


class TwoProcesses(MachineProcesses):
    """A node that listens once `may_start` exists and until then ends, and a name server."""

    def __init__(self, machine: Machine, node_port: int, may_start: Path) -> None:
        super().__init__(machine, {"n0": node_port}, has_log_files=False, limits=QUICK)
        self._node_port = node_port
        self._may_start = may_start

    def commands(self) -> list[Command]:
        waits = f"import os; os.path.exists({str(self._may_start)!r}) or exit(3)\n{LISTENS}"
        address = self._machine.address
        return [
            Command(
                "namesrv",
                (sys.executable, "-c", LISTENS, address, str(self._machine.namesrv_port)),
                None,
            ),
            Command("n0", (sys.executable, "-c", waits, address, str(self._node_port)), None, 1),
        ]


async def test_a_process_that_ends_is_started_again_and_only_then_all_is_ready(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = write(tmp_path, "127.0.0.1", namesrv_port=free_port(), admin_port=0, grpc_port=0)
    manager = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(manager))
        listener.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(manager))
        processes = TwoProcesses(load_machine(home), free_port(), tmp_path / "may start")
        running = asyncio.create_task(processes.run())
        said: list[str] = []

        def has_said(text: str) -> bool:
            assert not running.done(), running.result()
            captured = capsys.readouterr()
            said.append(captured.out + captured.err)
            return text in "".join(said)

        try:
            await until(lambda: has_said("n0 is started again in 0.04 s"))
            assert "READY" not in "".join(said)
            with pytest.raises(BlockingIOError):
                listener.recv(100)
            (tmp_path / "may start").touch()
            await until(lambda: has_said("READY"))
            assert listener.recv(100) == b"READY=1"
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    text = "".join(said)
    delays = [line.split()[-2] for line in text.splitlines() if line.startswith("n0 is started again")]
    assert delays[:3] == ["0.01", "0.02", "0.04"]
    (ready,) = [line for line in text.splitlines() if line.startswith("READY ")]
    ready_of = json.loads(ready.removeprefix("READY "))
    assert (ready_of["machine"], list(ready_of["processes"])) == ("a", ["namesrv", "n0"])


class Sleepers(MachineProcesses):
    """Nodes that only run, and a name server that listens."""

    def commands(self) -> list[Command]:
        address, port = self._machine.address, str(self._machine.namesrv_port)
        namesrv = Command("namesrv", (sys.executable, "-c", LISTENS, address, port), None)
        sleeps = (sys.executable, "-c", "import time; time.sleep(60)")
        return [namesrv, *(Command(node, sleeps, None, 1) for node in self._nodes)]

    def _listening(self) -> dict[str, tuple[str, int]]:
        return {"namesrv": (self._machine.address, self._machine.namesrv_port)}


async def test_nodes_come_and_go_with_machine_toml(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_run, "FILE_INTERVAL_S", 0.01)
    home = write(tmp_path, "127.0.0.1", namesrv_port=free_port(), admin_port=0, grpc_port=0)
    cluster = Cluster.load(tmp_path)
    assert cluster is not None
    processes = Sleepers(load_machine(home), {"n0": 10911}, has_log_files=False, limits=QUICK)
    running = asyncio.create_task(processes.run())
    said: list[str] = []

    def has_said(text: str) -> bool:
        assert not running.done(), running.result()
        captured = capsys.readouterr()
        said.append(captured.out + captured.err)
        return text in "".join(said)

    try:
        await until(lambda: has_said("READY"))
        _, grown = cluster.with_group(["a"])
        ((machine, members),) = grown.items()
        (home / "machine.toml").write_text(machine.to_toml())
        await until(lambda: has_said("n10.pem cannot be read"))
        assert "ADDED" not in "".join(said)
        write_machine(tmp_path, machine, members, None)
        await until(lambda: has_said('ADDED {"node": "n10", "pid": '))
        (home / "machine.toml").write_text(machine.model_copy(update={"nodes": ("n10",)}).to_toml())
        await until(lambda: has_said('REMOVED {"node": "n0"}'))
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def test_notify_reaches_a_socket_of_either_kind_and_misses_none(tmp_path: Path) -> None:
    for name in (str(tmp_path / "socket"), f"\0{tmp_path}"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
            listener.bind(name)
            notify("READY=1", {"NOTIFY_SOCKET": name.replace("\0", "@")})
            assert listener.recv(100) == b"READY=1"
    for environment in ({}, {"NOTIFY_SOCKET": str(tmp_path / "no")}, {"NOTIFY_SOCKET": "vsock:2:1"}):
        notify("READY=1", environment)
