"""Changes from the command line: shown, asked about, done."""

from typing import Any

import pytest

from tests.unit.ledgermq.fake_admin import Asked, as_json, serving
from tests.unit.ledgermq.running import CommandLine

RESET = ("offset", "reset", "billing", "Orders", "--to", "latest")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


def result(**values: Any) -> dict[str, Any]:
    base = {
        "action": "offset.reset",
        "target": "billing",
        "isDryRun": False,
        "isDestructive": True,
        "effects": [{"subject": "broker-a/3", "before": "120", "after": "57, 63 messages again"}],
        "warnings": ["consumers are moved"],
        "confirmation": None,
        "outcomes": [],
        "isPartial": False,
    }
    return base | values


def answer(asked: Asked) -> tuple[int, bytes]:
    """As the service would: a preview with its confirmation, then the deed."""
    if "confirmation=c1" in asked.target:
        outcomes = [{"subject": "broker-a/3", "ok": True, "problem": None}]
        return as_json(200, result(outcomes=outcomes))
    return as_json(200, result(isDryRun=True, confirmation="c1"))


def type_in(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda prompt: words)


def test_yes_is_asked_for_after_the_preview(run: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    type_in(monkeypatch, "yes")
    with serving(answer) as admin:
        ran = run(*RESET, "--admin", admin.url)
    assert ran.code == 0
    assert ran.out.count("57, 63 messages again") == 2
    assert "would change" in ran.out
    assert "offset.reset billing: done" in ran.out
    assert "warning: consumers are moved" in ran.err
    first, second = admin.asked
    assert first.target == "/api/v1/consumer-groups/billing/offsets/reset"
    assert first.body == {"topic": "Orders", "to": "latest"}
    assert second.target.endswith("?dryRun=false&confirmation=c1")


def test_any_other_word_is_a_no(run: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    type_in(monkeypatch, "y")
    with serving(answer) as admin:
        ran = run(*RESET, "--admin", admin.url)
    assert (ran.code, len(admin.asked)) == (1, 1)
    assert "Nothing was done." in ran.err


def test_where_nobody_can_be_asked_it_needs_yes(run: CommandLine) -> None:
    with serving(answer) as admin:
        assert run(*RESET, "--admin", admin.url, "--json").code == 2
        assert run(*RESET, "--admin", admin.url, "--json", "--yes").json["outcomes"][0]["ok"]
        assert run(*RESET, "--admin", admin.url, "--json", "--dry-run").json["isDryRun"]
    assert "dryRun=true" in admin.asked[-1].target


def test_a_part_that_was_not_done_is_exit_code_3(run: CommandLine) -> None:
    outcomes = [
        {"subject": "broker-a", "ok": True, "problem": None},
        {"subject": "broker-b", "ok": False, "problem": "it is down"},
    ]
    with serving(lambda _: as_json(200, result(outcomes=outcomes, isPartial=True))) as admin:
        ran = run(*RESET, "--admin", admin.url)
    assert ran.code == 3
    assert "not done: broker-b: it is down" in ran.err


def test_a_situation_that_changed_shows_how_it_is_now(run: CommandLine) -> None:
    def changed(asked: Asked) -> tuple[int, bytes]:
        if "confirmation" not in asked.target:
            return answer(asked)
        now = result(isDryRun=True, effects=[{"subject": "broker-a/3", "before": "121", "after": "99"}])
        return as_json(409, {"detail": "Not done: the situation changed.", "result": now})

    with serving(changed) as admin:
        ran = run(*RESET, "--yes", "--admin", admin.url)
    assert ran.code == 1
    assert "121" in ran.out
    assert ran.err.endswith("error: Not done: the situation changed.\n")


@pytest.mark.parametrize(
    ("to", "body"),
    [
        ("earliest", {"to": "earliest"}),
        ("57", {"to": "offset", "offset": 57}),
        ("1700000000000", {"to": "time", "timeMs": 1_700_000_000_000}),
        ("2023-11-14T22:13:20+00:00", {"to": "time", "timeMs": 1_700_000_000_000}),
    ],
)
def test_where_to_reset_to(run: CommandLine, to: str, body: dict[str, object]) -> None:
    with serving(answer) as admin:
        run(
            "offset",
            "reset",
            "g",
            "T",
            "--to",
            to,
            "--queue",
            "broker-a/3",
            "--dry-run",
            "--admin",
            admin.url,
        )
    queues = [{"brokerName": "broker-a", "queueId": 3}]
    assert admin.asked[0].body == {"topic": "T", "queues": queues, **body}


def test_what_cannot_be_understood_is_wrong_usage(run: CommandLine) -> None:
    for args in (
        ("offset", "reset", "g", "T", "--to", "tomorrow"),
        ("offset", "reset", "g", "T", "--to", "latest", "--queue", "3"),
        ("topic", "edit", "T"),
        ("topic", "edit", "T", "--set", "novalue"),
        ("message", "send", "T", "text", "--file", __file__),
        ("audit",),
        ("topic", "lst"),
    ):
        ran = run(*args)
        assert (ran.code, ran.out) == (2, ""), args
        assert ran.err
