"""Changes from the command line: shown, asked about, done."""

from typing import Any

import pytest

from admin_api.services import Services
from admin_api.topics.changes import NewTopic
from ledgermq.calls import checked
from ledgermq.errors import UserError
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from tests.unit.admin_api.fake_brokers import NAMESRV, FakeBroker, FakeBrokers
from tests.unit.admin_api.serving import asking
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


def test_what_was_done_is_told_once(run: CommandLine) -> None:
    """By the effects, or by a line that says what it is."""
    effects = [{"subject": "broker-a: readQueues", "before": None, "after": "8"}]
    outcomes = [{"subject": name, "ok": True, "problem": None} for name in ("broker-a", "broker-b")]
    with serving(lambda _: as_json(200, result(effects=effects, outcomes=outcomes))) as admin:
        ran = run("topic", "create", "T", "--admin", admin.url)
    assert ran.code == 0
    assert ran.out.rstrip().splitlines()[-1] == "done: broker-b"
    assert ran.out.count("broker-a") == 1


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
def test_a_failure_is_told_once(run: CommandLine, form: list[str]) -> None:
    problem = "127.0.0.1:10911 answered code 1: the disk is full"
    outcomes = [{"subject": key, "ok": False, "problem": problem} for key in ("a", "b")]
    failed = {"detail": f"Not done: a, b: {problem}", "result": result(outcomes=outcomes)}
    with serving(lambda _: as_json(502, failed)) as admin:
        ran = run("config", "set", "127.0.0.1:10911", "a=1", "b=2", "--yes", "--admin", admin.url, *form)
    assert (ran.code, ran.err.count("the disk is full")) == (1, 1)
    assert ran.err.endswith(f"error: Not done: a, b: {problem}\n")
    assert "the disk is full" not in ran.out or form


class FullBrokers(FakeBrokers):
    """A broker that changes no setting."""

    async def invoke(self, address: str, command: RemotingCommand, timeout_s: float = 3.0) -> RemotingCommand:
        if command.code == RequestCode.UPDATE_BROKER_CONFIG:
            return RemotingCommand(ResponseCode.SYSTEM_ERROR, remark="the disk is full")
        return await super().invoke(address, command, timeout_s)

    async def close(self) -> None:
        """There is nothing to close."""


def test_a_failure_of_several_keys_is_told_once(run: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = FullBrokers(FakeBroker("broker-a", "127.0.0.1:10911"))
    monkeypatch.setattr("admin_api.services.client_from", lambda *_: brokers)
    settings = ("fileReservedTime=1", "deleteWhen=05")
    ran = run("config", "set", "127.0.0.1:10911", *settings, "--yes", "--namesrv", NAMESRV)
    assert (ran.code, ran.err.count("the disk is full")) == (1, 1), ran.err
    assert "deleteWhen, fileReservedTime: 127.0.0.1:10911 answered code 1" in ran.err


NAMES = "name may have the letters a to z and A to Z, digits and % | _ - + only"


@pytest.mark.parametrize(
    ("name", "said"),
    [("two words", NAMES), ("grün", NAMES), ("", NAMES), ("x" * 128, "name may have 127 characters at most")],
)
async def test_a_name_of_no_topic_is_told_in_plain_words_both_ways(name: str, said: str) -> None:
    async with asking(FakeBrokers()) as client:
        over_http = await client.post("/topics", json={"name": name})
    assert (over_http.status_code, over_http.json()["detail"]) == (422, f"{said}.")

    async def make(_: Services) -> NewTopic:
        return NewTopic.model_validate({"name": name})

    with pytest.raises(UserError) as directly:
        await checked(NAMESRV, make)
    assert (str(directly.value), directly.value.exit_code) == (f"{said}.", 2)


def test_a_bad_name_is_wrong_usage(run: CommandLine) -> None:
    ran = run("topic", "create", "two words", "--namesrv", "127.0.0.1:1")
    assert (ran.code, ran.out, ran.err) == (2, "", f"error: {NAMES}.\n")
