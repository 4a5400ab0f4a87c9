"""Users, policies and the switch of access control from the command line."""

from pathlib import Path
from typing import Any

import pytest

from remoting.acl import Signer
from tests.unit.admin_api.fake_brokers import NAMESRV
from tests.unit.admin_api.fake_users import OFF, GuardedBrokers
from tests.unit.ledgermq.fake_admin import Asked, FakeAdmin, as_json, serving
from tests.unit.ledgermq.running import CommandLine, Ran
from tests.unit.ledgermq.test_changing import result

SECRET = "tea and Biscuits "


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


def done(asked: Asked) -> tuple[int, bytes]:
    return as_json(200, result(outcomes=[{"subject": "broker-a", "ok": True, "problem": None}]))


def type_in(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    left = list(words)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("getpass.getpass", lambda prompt: left.pop(0))


def create(run: CommandLine, admin: FakeAdmin, *options: str) -> Ran:
    return run("user", "create", "alice", "--admin", admin.url, *options)


def test_a_password_is_typed_twice(run: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(done) as admin:
        type_in(monkeypatch, SECRET, SECRET)
        assert create(run, admin, "--type", "super").code == 0
        type_in(monkeypatch, SECRET, "another")
        differ = create(run, admin)
        type_in(monkeypatch, "")
        nothing = create(run, admin)
    (asked,) = admin.asked
    assert asked.body == {"username": "alice", "password": SECRET, "userType": "Super"}
    assert SECRET not in asked.target
    assert (differ.code, "the two passwords differ" in differ.err) == (2, True)
    assert (nothing.code, "nothing was typed" in nothing.err) == (2, True)


def test_a_password_is_the_first_line_of_a_file(
    run: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "password"
    file.write_bytes(f"{SECRET}\r\nmore".encode())
    with serving(done) as admin:
        file.chmod(0o644)
        open_to_all = create(run, admin, "--password-file", str(file))
        file.chmod(0o600)
        ran = create(run, admin, "--password-file", str(file), "--disabled", "--broker", "broker-a")
        with file.open() as stdin:
            monkeypatch.setattr("sys.stdin", stdin)
            piped = create(run, admin, "--password-file", "-")
    assert [asked.body["password"] for asked in admin.asked] == [SECRET] * 3
    assert admin.asked[1].body["userStatus"] == "disable"
    assert admin.asked[1].body["brokers"] == ["broker-a"]
    assert "chmod 600 it" in open_to_all.err
    assert "chmod" not in ran.err
    assert SECRET not in open_to_all.out + open_to_all.err + ran.out + piped.out


@pytest.mark.parametrize("content", [b"", b"\nsecond line", b"\xff\n", b"x" * 70_000])
def test_a_file_without_a_password(run: CommandLine, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "password"
    file.write_bytes(content)
    with serving(done) as admin:
        ran = create(run, admin, "--password-file", str(file))
        missing = create(run, admin, "--password-file", str(tmp_path / "none"))
        nowhere = create(run, admin)
    assert (ran.code, missing.code, nowhere.code, admin.asked) == (2, 2, 2, [])
    assert "No such file" in missing.err
    assert "--password-file FILE, or - for stdin" in nowhere.err


@pytest.mark.parametrize(
    ("args", "method", "target", "body"),
    [
        (
            ("user", "update", "a/b", "--type", "normal", "--disable"),
            "PATCH",
            "/users/a%2Fb?",
            {"userType": "Normal", "userStatus": "disable"},
        ),
        (("user", "update", "bob", "--enable"), "PATCH", "/users/bob?", {"userStatus": "enable"}),
        (("user", "delete", "bob", "--broker", "b"), "DELETE", "/users/bob?broker=b", None),
        (
            ("policy", "create", "bob", "Topic:a", "Group:b*", "--actions", "pub, SUB"),
            "POST",
            "/policies/bob?",
            {
                "resources": ["Topic:a", "Group:b*"],
                "actions": ["Pub", "Sub"],
                "sourceIps": [],
                "decision": "Allow",
                "policyType": "Custom",
            },
        ),
        (
            (
                *("policy", "update", "bob", "*", "--actions", "All", "--deny", "--default"),
                *("--from", "10.0.0.0/8", "--from", "::1"),
            ),
            "PUT",
            "/policies/bob?",
            {
                "resources": ["*"],
                "actions": ["All"],
                "sourceIps": ["10.0.0.0/8", "::1"],
                "decision": "Deny",
                "policyType": "Default",
            },
        ),
        (
            ("policy", "delete", "bob", "Topic:a"),
            "DELETE",
            "/policies/bob?resource=Topic%3Aa&policyType=Custom",
            None,
        ),
        (("policy", "delete", "bob", "--all"), "DELETE", "/policies/bob?policyType=Custom", None),
        (
            ("access", "set", "--authentication", "--no-authorization"),
            "PATCH",
            "/access?",
            {"authenticationEnabled": True, "authorizationEnabled": False},
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_is_asked_for(
    run: CommandLine, args: tuple[str, ...], method: str, target: str, body: Any
) -> None:
    with serving(done) as admin:
        assert run(*args, "--yes", "--admin", admin.url).code == 0
    (asked,) = admin.asked
    assert (asked.method, asked.body) == (method, body)
    assert f"{asked.target}?".startswith(f"/api/v1{target}")


@pytest.mark.parametrize(
    "args",
    [
        ("user", "update", "bob"),
        ("policy", "create", "bob", "Topic:a"),
        ("policy", "delete", "bob"),
        ("policy", "delete", "bob", "Topic:a", "--all"),
        ("access", "set"),
        ("user", "create", "bob", "--password", "x"),
    ],
)
def test_wrong_usage(run: CommandLine, args: tuple[str, ...]) -> None:
    assert run(*args).code == 2


def test_why_unsigned_requests_are_refused(run: CommandLine) -> None:
    problem = "127.0.0.1:10911 answered code 16: username cannot be null."
    problems = [{"address": "127.0.0.1:10911", "problem": problem}]
    answer = {"places": [], "isSigning": False, "problems": problems, "isPartial": True}
    with serving(lambda _: as_json(200, answer)) as admin:
        ran = run("access", "show", "--admin", admin.url)
    assert (ran.code, "not signed" in ran.err, problem in ran.err) == (3, True, True)


class Guarded(GuardedBrokers):
    """As the client of a command."""

    account = "root"

    async def close(self) -> None:
        """There is nothing to close."""


def test_the_brokers_are_asked_without_a_service(
    run: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command has a loop of its own, and so a broker of its own."""
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\n")
    file.chmod(0o600)
    made: list[Guarded] = []

    def client(*_: object) -> Guarded:
        made.append(Guarded(tmp_path, **OFF))
        return made[-1]

    monkeypatch.setattr("admin_api.services.client_from", client)
    place = ("--namesrv", NAMESRV)
    ran = run("user", "create", "alice", "--password-file", str(file), "--json", *place)
    assert (ran.code, ran.json["effects"][0]["after"]) == (0, "Normal, enabled")
    assert made[0].secured.parts.core.state.access.users.keys() == {"alice"}
    bad = run("user", "create", " ", "--password-file", str(file), *place)
    assert (bad.code, "printable characters" in bad.err) == (2, True)
    listed = run("user", "list", "oo", *place)
    assert "root" in listed.out
    assert "node" not in listed.out
    shown = run("user", "show", "root", *place)
    assert ("Super" in shown.out, "policies" in shown.out) == (True, True)
    unknown = run("policy", "create", "carol", "Topic:a", "--actions", "Pub", *place)
    assert (unknown.code, unknown.err) == (1, "error: The user carol does not exist.\n")
    wrong = run("policy", "create", "root", "Topic", "--actions", "Pub", *place)
    assert (wrong.code, "'Topic' is no resource" in wrong.err) == (2, True)
    assert run("policy", "show", "root", "--json", *place).json["policies"] == []
    assert "none" in run("policy", "list", *place).out
    assert run("policy", "delete", "root", "Topic:a", "--yes", *place).code == 1
    state = run("access", "show", *place)
    assert ("nothing" in state.out, state.err) == (True, "")
    preview = run("access", "set", "--authentication", "--dry-run", *place)
    assert "broker-a: authenticationEnabled" in preview.out
    assert "not signed" not in preview.err
    switched = run("access", "set", "--authentication", "--yes", *place)
    assert (switched.code, "done" in switched.out) == (0, True)
    assert SECRET not in ran.out + ran.err
    assert made[0].signer == Signer("root", "root-secret")
