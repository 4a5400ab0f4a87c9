"""Nothing that comes from outside speaks to the terminal: it is named as an escape."""

import io
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
from rich.console import Console

from ledgermq.calls import Call
from ledgermq.commands import messaging as consume
from ledgermq.errors import UserError
from ledgermq.output import print_json, remark, show_fields
from ledgermq.watch_view import Snapshot, Watched
from tests.unit.ledgermq.fake_admin import Asked, as_json, serving
from tests.unit.ledgermq.running import CommandLine

CLEAR = "\x1b[2J"
CSI = "\x9b"
WELL = {"problems": [], "isPartial": False}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


def test_a_remark(capsys: pytest.CaptureFixture[str]) -> None:
    remark(f"10.0.0.9:10911: {CLEAR} no\nand {CSI}2J")
    assert capsys.readouterr().err == "10.0.0.9:10911: \\x1b[2J no\nand \\x9b2J\n"


def test_why_a_command_ends(run: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise UserError(f"the broker says {CLEAR}")

    monkeypatch.setattr(Call, "get", fail)
    ran = run("topic", "show", "orders", "--namesrv", "127.0.0.1:1")
    assert (ran.code, ran.err) == (1, "error: the broker says \\x1b[2J\n")


def test_the_names_of_properties(capsys: pytest.CaptureFixture[str]) -> None:
    show_fields({f"a{CLEAR}\nb": "1", "key": "2"})
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["a\\x1b[2J\\nb", "1"],
        ["key", "2"],
    ]


def test_the_stack_of_a_consumer_keeps_its_lines(run: CommandLine) -> None:
    running = {"clientId": "c", "brokerName": "b", "properties": {}, "queues": [], **WELL}
    with serving(lambda _: as_json(200, {**running, "stack": f"main\n  at {CLEAR}"})) as admin:
        ran = run("group", "running", "billing", "c", "--stack", "--admin", admin.url)
    assert (ran.code, ran.out.endswith("main\n  at \\x1b[2J\n")) == (0, True)


def test_the_groups_of_a_topic(run: CommandLine) -> None:
    topic = {"name": "orders", "kind": "normal", "configs": [], "consumerGroups": [f"g{CLEAR}", "h"], **WELL}

    def answer(asked: Asked) -> tuple[int, bytes]:
        queues = {"messageCount": 0, "queues": [], **WELL}
        return as_json(200, queues if asked.target.endswith("/queues") else topic)

    with serving(answer) as admin:
        ran = run("topic", "show", "orders", "--admin", admin.url)
    assert "Consumer groups: g\\x1b[2J, h\n" in ran.out


def test_the_title_of_a_group_in_watch() -> None:
    group: dict[str, Any] = {"group": f"a{CLEAR}", "state": "writable", "leaderId": f"n{CLEAR}", "term": 1}
    view = {"groups": [{**group, "nodes": [], "elections": []}], "namesrv": {"problem": None}}
    console = Console(file=io.StringIO(), width=200)
    console.print(Watched().picture(Snapshot({"cluster": view}, ()), 1.0, 0, ""))
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "\x1b" not in shown
    assert "a\\x1b[2J: writable, n\\x1b[2J leads, term 1" in shown


def test_json_at_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    value = {"name": f"{CSI}2J \u202e \U000e0001 \u540d"}
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_json(value)
    assert capsys.readouterr().out == '{\n  "name": "\\u009b2J \\u202e \\udb40\\udc01 \u540d"\n}\n'


CSV_LINES = f'group,body\r\nbilling,"{CLEAR} \u540d\nand {CSI}2J"\r\n'
JSON_LINES = f'{{"body":"{CSI}2J \u540d"}}\n{{"body":"\\u001b[2J"}}\n'
SAID = "What cannot be seen is shown as escapes; --to FILE writes it as it is.\n"


@pytest.mark.parametrize(
    ("form", "text", "shown", "said"),
    [
        ("csv", CSV_LINES, 'group,body\nbilling,"\\x1b[2J \u540d\nand \\x9b2J"\n', SAID),
        ("jsonl", JSON_LINES, '{"body":"\\u009b2J \u540d"}\n{"body":"\\u001b[2J"}\n', ""),
    ],
)
def test_exported_dead_letters(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    text: str,
    shown: str,
    said: str,
) -> None:
    args = ("dlq", "export", "billing", "--format", form)
    run = CommandLine(monkeypatch, capsys)
    with serving(lambda _: (200, text.encode())) as admin:
        assert run(*args, "--admin", admin.url).out == text
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        ran = run(*args, "--admin", admin.url)
    assert (ran.code, ran.out, ran.err) == (0, shown, said)


def test_exported_messages_are_for_this_user_alone(run: CommandLine, tmp_path: Path) -> None:
    new, existing = tmp_path / "new.jsonl", tmp_path / "existing.jsonl"
    existing.write_text("more than there will be, which is not left behind" * 9)
    existing.chmod(0o640)
    with serving(lambda _: (200, JSON_LINES.encode())) as admin:
        for file in (new, existing):
            ran = run("dlq", "export", "billing", "--to", str(file), "--admin", admin.url)
            assert (ran.code, file.read_text()) == (0, JSON_LINES)
    assert [path.stat().st_mode & 0o777 for path in (new, existing)] == [0o600, 0o640]


HIDDEN = "a\u202eb\u200bc\u2066d"
SHOWN = "a\\u202eb\\u200bc\\u2066d"


def test_a_topic_and_an_audit_line_with_direction_characters(run: CommandLine) -> None:
    topic = {"name": HIDDEN, "kind": HIDDEN, "brokers": [HIDDEN], "readQueues": 1, "writeQueues": 1}
    topic |= {"canRead": True, "canWrite": True, "isOrdered": False}
    entry = {"id": 1, "atMs": 1, "actor": HIDDEN, "role": HIDDEN, "remote": HIDDEN, "action": HIDDEN}
    entry |= {"target": HIDDEN, "outcome": "applied", "effects": [], "effectsTotal": 0, "warnings": []}
    entry |= {"problem": None}
    page = {"page": 1, "pageSize": 100, "total": 1, "isKept": True, **WELL}

    def answer(asked: Asked) -> tuple[int, bytes]:
        return as_json(200, {**page, "items": [entry if "audit" in asked.target else topic]})

    with serving(answer) as admin:
        for words in (("topic", "list"), ("audit",)):
            ran = run(*words, "--admin", admin.url)
            assert (ran.code, ran.out.count(SHOWN) >= 3, HIDDEN in ran.out) == (0, True, False), ran


async def test_bodies_at_a_terminal_and_for_a_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`consume` prints them: to a program they are what was sent."""

    class Found:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        async def __aenter__(self) -> Self:
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

        async def messages(self) -> AsyncIterator[SimpleNamespace]:
            yield SimpleNamespace(record=SimpleNamespace(body=f"{HIDDEN}{CLEAR}\nb".encode()))

        def consume(self, _: object) -> None:
            pass

    monkeypatch.setattr(consume, "Consumer", Found)
    options = consume.ConsumeOptions("t", "127.0.0.1:1", "g", from_first=True, count=1)
    await consume.print_messages(options)
    assert capsys.readouterr().out == f"{HIDDEN}{CLEAR}\nb\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    await consume.print_messages(options)
    assert capsys.readouterr().out == f"{SHOWN}\\x1b[2J\nb\n"
