"""The command as a user types it: words on stderr, exit codes, no processes started."""

import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ledgermq.app import PLACES, app
from ledgermq.cli import main
from ledgermq.errors import WRONG_USAGE, UserError
from ledgermq.local.foreground import locked
from ledgermq.local.plan import ClusterPlan, is_free, require_free
from tests.support.self_dialled import self_connected


def failure(*args: str) -> str:
    """The sentence a command ends with."""
    result = CliRunner().invoke(app, list(args))
    assert isinstance(result.exception, UserError), result.output
    return str(result.exception)


@pytest.fixture
def taken_port() -> Iterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    with listener:
        yield port


def test_help_names_every_command() -> None:
    output = CliRunner().invoke(app, ["--help"]).output
    for command in PLACES:
        assert f" {command} " in output


def test_up_port_in_use_is_named_with_its_purpose(tmp_path: Path, taken_port: int) -> None:
    said = failure("up", "--data", str(tmp_path), "--admin-port", str(taken_port))
    assert f"port {taken_port} for the admin (--admin-port) is in use on 127.0.0.1 by process" in said
    assert not (tmp_path / "cluster.toml").exists()


def test_up_other_number_of_nodes_is_refused(tmp_path: Path) -> None:
    ClusterPlan(tmp_path, 3).save()
    assert "--nodes 5 conflicts" in failure("up", "--data", str(tmp_path), "--nodes", "5")


def test_up_key_of_the_plan_is_refused(tmp_path: Path) -> None:
    said = failure("up", "--data", str(tmp_path), "--set", "listenPort=3")
    assert said == "listenPort cannot be set for a local cluster: use --broker-port."


def test_up_wrong_usage_is_exit_code_2(tmp_path: Path) -> None:
    for args in (
        ["up", "--nodes", "0"],
        ["up", "--durability", "none"],
        ["up", "--config", str(tmp_path / "no")],
    ):
        assert CliRunner().invoke(app, args).exit_code == 2


def test_up_twice_in_one_folder_is_refused(tmp_path: Path) -> None:
    with locked(tmp_path):
        assert "already runs (ledgermq up, pid" in failure("up", "--data", str(tmp_path))
    with locked(tmp_path), (tmp_path / "up.lock").open() as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_up_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot be used" in failure("up", "--data", str(tmp_path / "file" / "data"))


def test_node_without_a_cluster_is_a_sentence(tmp_path: Path) -> None:
    assert "there is no cluster" in failure("node", "n1", "--data", str(tmp_path))


def test_node_that_runs_is_refused(tmp_path: Path, taken_port: int) -> None:
    ClusterPlan(tmp_path, 1, broker_port=taken_port).save()
    said = failure("node", "n0", "--data", str(tmp_path))
    assert f"n0 seems to run already: its port {taken_port} is in use by process {os.getpid()} (" in said


def test_node_whose_port_a_connection_has_is_refused_with_the_process(tmp_path: Path) -> None:
    with self_connected() as held:
        port = held.getsockname()[1]
        ClusterPlan(tmp_path, 1, broker_port=port).save()
        said = failure("node", "n0", "--data", str(tmp_path))
    assert f"n0 cannot start: its port {port} is in use by a connection of process {os.getpid()} (" in said
    assert said.endswith(f") to 127.0.0.1:{port}.")


def test_status_name_server_gone_is_a_sentence() -> None:
    assert "the name server 127.0.0.1:1 gives no answer" in failure("status", "--namesrv", "127.0.0.1:1")


def test_status_names_every_name_server_that_is_gone() -> None:
    said = failure("status", "--namesrv", "127.0.0.1:1;127.0.0.1:2")
    assert "127.0.0.1:1 cannot be reached" in said
    assert "127.0.0.1:2 cannot be reached" in said


@pytest.mark.parametrize("command", [("status",), ("topic", "list"), ("consume", "T"), ("grpc",)])
def test_a_name_server_that_is_no_address_is_wrong_usage(command: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*command, "--namesrv", "127.0.0.1:9876;somewhere"])
    assert isinstance(result.exception, UserError), result.output
    assert str(result.exception) == "The name server 'somewhere' is not host:port."
    assert result.exception.exit_code == WRONG_USAGE


def test_consume_name_server_gone_is_a_sentence() -> None:
    assert "the name server gives no answer" in failure(
        "consume", "T", "--namesrv", "127.0.0.1:1", "--count", "1"
    )


def test_main_turns_an_error_into_a_sentence_and_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["ledgermq", "node", "n1", "--data", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith("error: there is no cluster in")


def test_ports_free_and_taken(taken_port: int) -> None:
    assert not is_free(taken_port)
    with pytest.raises(UserError, match=f"port {taken_port} for a test is in use on 127.0.0.1"):
        require_free({taken_port: "a test"})


def test_version_tells_compiled_from_pure(monkeypatch: pytest.MonkeyPatch) -> None:
    assert CliRunner().invoke(app, ["version"]).output.startswith("ledgermq ")
    monkeypatch.setenv("LEDGERMQ_PURE", "1")
    assert CliRunner().invoke(app, ["version"]).output.endswith(", pure Python\n")


def test_every_command_can_be_built_and_explains_itself() -> None:
    runner = CliRunner()
    groups = ("node", "topic", "group", "offset", "message", "dlq", "config", "user", "policy", "access")
    for name in PLACES:
        assert runner.invoke(app, [name, "--help"]).exit_code == 0, name
    for name in groups:
        listed = runner.invoke(app, [name]).output
        commands = [
            line.split()[1] for line in listed.splitlines() if line.startswith("│ ") and "--" not in line
        ]
        for command in {word for word in commands if word.isalpha() and word.islower()} & {
            *(
                "list",
                "show",
                "create",
                "edit",
                "update",
                "delete",
                "stats",
                "route",
                "members",
                "running",
                "reset",
            ),
            *("clone", "skip", "find", "trace", "resend", "send", "export", "get", "set", "start"),
        }:
            assert runner.invoke(app, [name, command, "--help"]).exit_code == 0, (name, command)


def test_completion_prints_a_script() -> None:
    for shell in ("bash", "zsh", "fish"):
        assert "_LEDGERMQ_COMPLETE" in CliRunner().invoke(app, ["completion", shell]).output


def test_doctor_without_a_name_server_finds_that() -> None:
    result = CliRunner().invoke(app, ["doctor", "--namesrv", "127.0.0.1:1"])
    assert result.exit_code == 1
    assert "The name server does not answer: 127.0.0.1:1 cannot be reached" in result.output
    assert "Start it, or name the right one" in result.output
    result = CliRunner().invoke(app, ["doctor", "--namesrv", "127.0.0.1:1;127.0.0.1:2"])
    assert result.exit_code == 1
    for address in ("127.0.0.1:1", "127.0.0.1:2"):
        assert f"The name server does not answer: {address} cannot be reached" in result.output
