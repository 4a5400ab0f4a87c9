"""The commands: what they refuse, and that they cost nothing until they run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from typer.testing import CliRunner

from rocketmq_spark.errors import JobError, OptionError
from rocketmq_spark.jobs import cli as cli_app
from rocketmq_spark.jobs.cli import app, unknown_options

COMMANDS = ("archive", "replay", "audit", "report")


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(args), env={"COLUMNS": "400"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples(command: str) -> None:
    code, text = run(command, "--help")
    assert code == 0
    assert f"ledgermq spark {command} " in text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_unknown_option_is_named_with_the_nearest(command: str) -> None:
    code, text = run(command, "--mastr", "local[1]", "--conf", "a=b", "--nosuch=1", "--mastr=2")
    assert code == (1 if command == "audit" else 2)  # an audit says 2 of replicas that differ
    assert "No such option: --mastr (nearest: --master" in text
    assert "No such option: --nosuch" in text
    assert text.count("--mastr ") == 1


def test_values_behind_a_double_dash_are_no_options() -> None:
    assert unknown_options(["--to", "x", "--", "--topic"], ["--to"]) == []
    assert unknown_options(["-x", "--a", "--b=--to"], ["--b"]) == ["--a"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["archive", "Orders"], "Give --to PATH, or --verify PATH"),
        (["archive", "Orders", "--to", "x", "--batch-messages", "0"], "--batch-messages"),
        (["archive", "Orders", "--to", "x", "--every", "10s"], "--every is the interval"),
        (["replay"], "--to"),
        (["report", "--top", "0", "--to", "x"], "--top"),
    ],
)
def test_wrong_usage(args: list[str], words: str) -> None:
    code, text = run(*args)
    assert code == 2
    assert words in text


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["archive", "Orders", "--to", "x", "--batch-bytes", "much"], "--batch-bytes is 'much'"),
        (["archive", "Orders", "--to", "x", "--continuous", "--every", "soon"], "--every is 'soon'"),
        (["replay", "--topic", "A", "--to", "B", "--from", "then"], "--from is 'then'"),
        (["report", "--to", "x", "--until", "then"], "--until is 'then'"),
    ],
)
def test_unreadable_values_are_told_before_spark_starts(args: list[str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        run(*args)


class FakeSession:
    stopped = False

    def stop(self) -> None:
        self.stopped = True


@contextmanager
def fake_sessions(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSession]:
    session = FakeSession()
    monkeypatch.setattr(cli_app, "open_session", lambda options: session)
    yield session
    assert session.stopped


def test_what_fails_inside_spark_becomes_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(error: Exception) -> None:
        with fake_sessions(monkeypatch), cli_app.job("archive", None, None):
            raise error

    with pytest.raises(JobError, match=r"^the words$"):
        fail(RuntimeError("the words\n\tat org.apache.spark"))
    with pytest.raises(OptionError, match="own words"):
        fail(OptionError("own words"))


def test_an_error_is_told_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli_app.print_error(JobError("no topic.")) == 1
    assert capsys.readouterr().err == "error: no topic.\n"


def test_a_trace_is_told_when_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cli_app.TRACE, "1")
    cli_app.print_error(JobError("no topic."))
    assert "JobError: no topic." in capsys.readouterr().err


MISSING = """
import sys
sys.modules |= {"pyspark": None, "pyarrow": None}
from ledgermq.cli import main
main()
"""


@pytest.mark.parametrize(
    "args",
    [
        ("archive", "Orders", "--to", "x"),
        ("replay", "--topic", "A", "--to", "B"),
        ("audit", "store"),
        ("report", "--to", "x"),
    ],
)
def test_a_missing_extra_is_one_sentence(args: Sequence[str]) -> None:
    result = subprocess.run(
        [sys.executable, "-c", MISSING, "spark", *args],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    expected = (
        "error: the Spark jobs need pyspark, pyarrow. Install what they need: pip install 'ledgermq[spark]'"
    )
    assert (result.returncode, result.stdout, result.stderr) == (1, "", f"{expected}\n")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("archive", "--to", "x"), "needs topics or a pattern"),
        (("archive", "A", "--to", "x", "--format", "orc"), "the format 'orc' is not known"),
        (("archive", "A", "--to", "x", "--continuous", "--every", "10ms"), "after 1 s or later"),
        (("archive", "A", "--to", "x", "--source", "tags=a"), "tags would make gaps"),
        (("archive", "A", "--to", "x", "--source", "failOnDataLoss=false"), "is said by --allow-data-loss"),
        (("replay", "--to", "B"), "needs an archive, or topics"),
        (("replay", "--topic", "A", "--to", "B", "--from", "2", "--until", "1"), "ends before it begins"),
        (("report", "--to", "x", "--archive", "a", "--lag-for", "1m"), "no consumer lag"),
    ],
)
def test_what_contradicts_itself_is_told_before_spark_starts(args: Sequence[str], words: str) -> None:
    with pytest.raises(JobError, match=words):
        run(*args)


def loaded_by(*args: str) -> set[str]:
    """The top-level modules that are there when the command line has said its help."""
    program = (
        "import sys\nfrom ledgermq.app import app\n"
        "try: app(sys.argv[1:])\nexcept SystemExit: pass\n"
        "print('LOADED', *{name.partition('.')[0] for name in sys.modules})"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, *args], capture_output=True, text=True, timeout=60, check=True
    )
    return set(result.stdout.rpartition("LOADED ")[2].split())


@pytest.mark.parametrize("args", [("--help",), ("spark", "archive", "--help")])
def test_the_command_line_starts_without_spark(args: Sequence[str]) -> None:
    loaded = loaded_by(*args)
    assert "rocketmq_spark" in loaded
    heavy: set[Any] = {"pyspark", "pyarrow", "pandas", "numpy", "fsspec", "matplotlib"}
    assert loaded & heavy == set()
