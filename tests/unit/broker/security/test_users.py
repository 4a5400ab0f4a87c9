"""Users and rights as operators manage them (3001 to 3010): answers, remarks and JSON of RocketMQ."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from broker.config import ConfigError, config_from
from broker.security.passwords import PasswordCipher, open_cipher
from broker.state.access import USERS_MAX, User
from remoting.acl import Signer
from remoting.codes import RequestCode as Code
from tests.support.secured import KEY, ROOT, Secured, secured_values, write_key

ALICE = Signer("alice", "alice-secret")
ENTRY = {"resource": "Topic:orders*", "actions": ["Pub", "Get"], "sourceIps": [], "decision": "Allow"}


@pytest.fixture
async def broker(tmp_path: Path) -> Secured:
    made = Secured(tmp_path)
    assert (await made.create_user("alice", "alice-secret")).code == 0
    return made


def acl(*entries: dict[str, Any], kind: str = "Custom") -> dict[str, Any]:
    return {"subject": "User:alice", "policies": [{"policyType": kind, "entries": list(entries)}]}


async def shown(broker: Secured, code: Code, **fields: str) -> Any:
    answer = await broker.ask(ROOT, code, **fields)
    assert answer.code == 0, answer
    return orjson.loads(answer.body) if answer.body else None


async def test_a_user_is_shown_without_its_password(broker: Secured) -> None:
    alice = {"username": "alice", "userType": "Normal", "userStatus": "enable"}
    assert await shown(broker, Code.AUTH_GET_USER, username="alice") == alice
    assert await shown(broker, Code.AUTH_GET_USER, username="bob") is None
    rows = await shown(broker, Code.AUTH_LIST_USER)
    assert [row["username"] for row in rows] == ["alice", "node", "root"]
    assert await shown(broker, Code.AUTH_LIST_USER, filter="li") == [alice]
    assert await shown(broker, Code.AUTH_LIST_USER, filter="nobody") is None


async def test_an_update_changes_what_it_names(broker: Secured) -> None:
    update = Code.AUTH_UPDATE_USER
    assert (await broker.ask(ROOT, update, {"userType": "Super"}, username="alice")).code == 0
    assert (await broker.ask(ALICE, Code.GET_BROKER_CONFIG)).code == 0
    assert (await broker.ask(ROOT, update, {"password": "another"}, username="alice")).code == 0
    assert (await broker.ask(ALICE, Code.GET_BROKER_CONFIG)).remark == "check signature failed."
    assert (await broker.ask(Signer("alice", "another"), Code.GET_BROKER_CONFIG)).code == 0


@pytest.mark.parametrize(
    ("code", "username", "body", "answer"),
    [
        (Code.AUTH_CREATE_USER, "", {"password": "p"}, (29, "The username is blank")),
        (Code.AUTH_CREATE_USER, " ", {"password": "p"}, (16, "username can not be blank")),
        (Code.AUTH_CREATE_USER, "bob", {}, (16, "password can not be blank")),
        (Code.AUTH_CREATE_USER, "bob", {"password": " "}, (16, "password can not be blank")),
        (
            Code.AUTH_CREATE_USER,
            "bob",
            {"password": "p" * 1025},
            (16, "a password has at most 1024 characters"),
        ),
        (Code.AUTH_CREATE_USER, "alice", {"password": "p"}, (16, "The user is existed")),
        (Code.AUTH_CREATE_USER, "root", {"password": "p"}, (16, "The user is existed")),
        (Code.AUTH_CREATE_USER, "bob", [], (29, "the body is not a JSON object")),
        (Code.AUTH_CREATE_USER, "bob", b'{"password": "broken', (29, "the body is not a JSON object")),
        (Code.AUTH_UPDATE_USER, "bob", {"password": "p"}, (16, "The user is not exist")),
        (Code.AUTH_UPDATE_USER, "", {"password": "p"}, (29, "The username is blank")),
        (Code.AUTH_GET_USER, "", None, (29, "The username is blank")),
        (Code.AUTH_DELETE_USER, "bob", None, (0, None)),
    ],
)
async def test_answers_about_users(
    broker: Secured, code: Code, username: str, body: Any, answer: tuple[int, str | None]
) -> None:
    records = len(broker.log.messages)
    got = await broker.ask(ROOT, code, body, username=username)
    assert (got.code, got.remark) == answer
    assert len(broker.log.messages) == records, "what changes nothing needs no record"


async def test_mqadmin_sends_a_creation_to_each_node_of_the_group(broker: Secured) -> None:
    records = len(broker.log.messages)
    assert (await broker.create_user("alice", "alice-secret")).code == 0
    assert len(broker.log.messages) == records
    assert (await broker.create_user("alice", "another")).remark == "The user is existed"
    assert (await broker.create_user("alice", "alice-secret", userType="Super")).code == 16


async def test_a_user_goes_with_its_rights(broker: Secured) -> None:
    await broker.allow("alice", "Topic:*", "Get")
    assert (await broker.ask(ROOT, Code.AUTH_DELETE_USER, username="alice")).code == 0
    assert (await broker.ask(ALICE, Code.GET_TOPIC_CONFIG)).remark == "User:alice is not found."
    await broker.create_user("alice", "alice-secret")
    assert await shown(broker, Code.AUTH_GET_ACL, subject="User:alice") is None


async def test_super_users_are_for_super_users(broker: Secured) -> None:
    await broker.allow("alice", "Cluster:*", "Update")
    created = await broker.ask(
        ALICE, Code.AUTH_CREATE_USER, {"password": "p", "userType": "Super"}, username="x"
    )
    assert (created.code, created.remark) == (1, "The super user can only be create by super user")
    words = "The super user can only be update by super user"
    raised = await broker.ask(ALICE, Code.AUTH_UPDATE_USER, {"userType": "Super"}, username="alice")
    assert (raised.code, raised.remark) == (1, words)
    await broker.create_user("admin", "a-secret", userType="Super")
    for code, body in ((Code.AUTH_UPDATE_USER, {"password": "p"}), (Code.AUTH_DELETE_USER, None)):
        answer = await broker.ask(ALICE, code, body, username="admin")
        assert (answer.code, answer.remark) == (16, words)
    assert (await broker.ask(ALICE, Code.AUTH_CREATE_USER, {"password": "p"}, username="bob")).code == 0


async def test_users_of_the_configuration(broker: Secured) -> None:
    deleted = await broker.ask(ROOT, Code.AUTH_DELETE_USER, username="root")
    assert deleted.remark == "the user stands in the nodes' configuration: remove it there"
    disabled = await broker.ask(ROOT, Code.AUTH_UPDATE_USER, {"userStatus": "disable"}, username="root")
    assert disabled.remark == "the user stands in the nodes' configuration: give its password too"
    changed = await broker.ask(ROOT, Code.AUTH_UPDATE_USER, {"password": "new"}, username="root")
    assert changed.code == 0
    assert (await broker.ask(ROOT, Code.GET_BROKER_CONFIG)).remark == "check signature failed."
    new_root = Signer("root", "new")
    assert (await broker.ask(new_root, Code.AUTH_DELETE_USER, username="root")).code == 0
    assert (await broker.ask(ROOT, Code.GET_BROKER_CONFIG)).code == 0


async def test_rights_are_added_replaced_and_shown(broker: Secured) -> None:
    subject = "User:alice"
    assert (await broker.ask(ROOT, Code.AUTH_CREATE_ACL, acl(ENTRY), subject=subject)).code == 0
    assert await shown(broker, Code.AUTH_GET_ACL, subject=subject) == acl(ENTRY)
    other = ENTRY | {"resource": "Group:*", "actions": ["Sub"], "sourceIps": ["10.0.0.0/8"]}
    assert (await broker.ask(ROOT, Code.AUTH_UPDATE_ACL, acl(other), subject=subject)).code == 0
    denied = ENTRY | {"decision": "Deny"}
    assert (await broker.ask(ROOT, Code.AUTH_CREATE_ACL, acl(denied), subject=subject)).code == 0
    assert await shown(broker, Code.AUTH_GET_ACL, subject=subject) == acl(denied, other)
    default = acl(ENTRY, kind="Default")
    assert (await broker.ask(ROOT, Code.AUTH_UPDATE_ACL, default, subject=subject)).code == 0
    policies = acl(denied, other)["policies"] + default["policies"]
    assert await shown(broker, Code.AUTH_LIST_ACL) == [{"subject": subject, "policies": policies}]


async def test_lists_are_filtered(broker: Secured) -> None:
    await broker.create_user("bob", "b")
    for name, resource in (("alice", "Topic:orders"), ("bob", "Topic:orders"), ("bob", "Group:g")):
        await broker.allow(name, resource, "Sub")
    rows = await shown(broker, Code.AUTH_LIST_ACL, resourceFilter="Group")
    assert [row["subject"] for row in rows] == ["User:bob"]
    assert [entry["resource"] for entry in rows[0]["policies"][0]["entries"]] == ["Group:g"]
    (row,) = await shown(broker, Code.AUTH_LIST_ACL, subjectFilter="ali")
    assert row["subject"] == "User:alice"
    assert await shown(broker, Code.AUTH_LIST_ACL, subjectFilter="carol") is None


async def test_rights_are_taken_away_one_by_one_or_all(broker: Secured) -> None:
    subject = "User:alice"
    for resource in ("Topic:a", "Topic:b", "Topic:c"):
        await broker.allow("alice", resource, "Pub")
    await broker.ask(ROOT, Code.AUTH_DELETE_ACL, subject=subject, resource="Topic:a", policyType="Custom")
    assert [
        entry["resource"]
        for entry in (await shown(broker, Code.AUTH_GET_ACL, subject=subject))["policies"][0]["entries"]
    ] == ["Topic:b", "Topic:c"]
    assert (await broker.ask(ROOT, Code.AUTH_DELETE_ACL, subject=subject)).code == 0
    assert await shown(broker, Code.AUTH_GET_ACL, subject=subject) is None
    await broker.allow("alice", "Topic:a", "Pub")
    await broker.ask(ROOT, Code.AUTH_DELETE_ACL, subject=subject, resource="Topic:a")
    assert (await broker.ask(ROOT, Code.AUTH_DELETE_ACL, subject=subject)).code == 0


async def test_an_update_makes_what_is_not_there_and_a_deletion_leaves_what_it_does_not_name(
    broker: Secured,
) -> None:
    subject = "User:alice"
    source = {"actions": ["Pub", "Sub"], "sourceIps": ["192.168.0.0/24", "10.10.0.0/24"]}
    entries = [ENTRY | source | {"resource": name} for name in ("Topic:test", "Group:test")]
    assert (await broker.ask(ROOT, Code.AUTH_UPDATE_ACL, acl(*entries), subject=subject)).code == 0
    assert await shown(broker, Code.AUTH_GET_ACL, subject=subject) == acl(*entries)
    for fields in (
        {"resource": "Topic:abc"},
        {"resource": "Topic:tes"},
        {"resource": "Topic:test", "policyType": "Default"},
    ):
        assert (await broker.ask(ROOT, Code.AUTH_DELETE_ACL, subject=subject, **fields)).code == 0
        assert await shown(broker, Code.AUTH_GET_ACL, subject=subject) == acl(*entries)
    other = [ENTRY | source | {"resource": name} for name in ("Topic:abc", "Group:abc")]
    assert (await broker.ask(ROOT, Code.AUTH_UPDATE_ACL, acl(*other), subject=subject)).code == 0
    assert await shown(broker, Code.AUTH_GET_ACL, subject=subject) == acl(*entries, *other)


@pytest.mark.parametrize(
    ("code", "subject", "body", "answer"),
    [
        (Code.AUTH_CREATE_ACL, "User:alice", None, (1, "The body of acl is null")),
        (Code.AUTH_CREATE_ACL, "Role:alice", {"policies": [{}]}, (16, "The subject type is null.")),
        (
            Code.AUTH_CREATE_ACL,
            "User:bob",
            {"policies": [{"entries": [ENTRY]}]},
            (16, "The subject of User:bob is not exist."),
        ),
        (
            Code.AUTH_UPDATE_ACL,
            "User:alice",
            acl(ENTRY | {"decision": "Maybe"}),
            (16, "The decision is null or illegal."),
        ),
        (Code.AUTH_GET_ACL, "User:bob", None, (16, "The subject is not exist.")),
        (Code.AUTH_DELETE_ACL, "User:bob", None, (16, "The subject is not exist.")),
    ],
)
async def test_answers_about_rights(
    broker: Secured, code: Code, subject: str, body: Any, answer: tuple[int, str]
) -> None:
    got = await broker.ask(ROOT, code, body, subject=subject)
    assert (got.code, got.remark) == answer


async def test_two_changes_at_once_are_both_made(broker: Secured) -> None:
    entries = [ENTRY | {"resource": f"Topic:{name}"} for name in "ab"]
    requests = [
        broker.request(ROOT, Code.AUTH_CREATE_ACL, acl(entry), subject="User:alice") for entry in entries
    ]
    broker.parts.router.dispatch([(broker.connection.as_connection, requests, Code.AUTH_CREATE_ACL)])
    await broker.answers(2)
    assert await shown(broker, Code.AUTH_GET_ACL, subject="User:alice") == acl(*entries)


async def test_the_state_comes_back_from_the_log_and_the_snapshot(broker: Secured, tmp_path: Path) -> None:
    await broker.allow("alice", "Topic:TBW102", "Get")
    log = broker.log.reopened()
    restarted = Secured(tmp_path, log=log)
    await log.start()
    assert (await restarted.ask(ALICE, Code.GET_TOPIC_CONFIG, topic="TBW102")).code == 0
    rows = broker.parts.state._tables.to_json()
    (tmp_path / "other").mkdir()
    other = Secured(tmp_path / "other")
    other.parts.state._tables.load_json(orjson.loads(orjson.dumps(rows)))
    assert (await other.ask(ALICE, Code.GET_TOPIC_CONFIG, topic="TBW102")).code == 0


async def test_users_are_bounded(broker: Secured) -> None:
    users = broker.parts.state._tables.access.users
    users.update((f"u{number}", User(f"u{number}", "")) for number in range(USERS_MAX))
    assert (await broker.create_user("one-more", "p")).code == 13
    assert (await broker.ask(ROOT, Code.AUTH_UPDATE_USER, {"password": "p"}, username="alice")).code == 0


async def test_without_a_key_there_are_no_passwords(tmp_path: Path) -> None:
    broker = Secured(tmp_path, authKeyPath="", authenticationEnabled=False, authorizationEnabled=False)
    answer = await broker.ask(None, Code.AUTH_CREATE_USER, {"password": "p"}, username="alice")
    assert (answer.code, "authKeyPath" in str(answer.remark)) == (16, True)


def test_a_password_is_bound_to_its_user_and_key() -> None:
    cipher = PasswordCipher(bytes(32))
    sealed = cipher.encrypt("alice", "geheim")
    assert sealed != cipher.encrypt("alice", "geheim")
    assert cipher.decrypt("alice", sealed) == b"geheim"
    assert cipher.decrypt("bob", sealed) is None
    assert PasswordCipher(bytes(31) + b"1").decrypt("alice", sealed) is None
    assert cipher.decrypt("alice", "no base64!") is None
    assert cipher.decrypt("alice", "") is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"authKeyPath": ""}, "need authKeyPath"),
        ({"authKeyPath": "none"}, "none cannot be read"),
        (
            {"innerClientAuthenticationCredentials": "", "dLegerPeers": "n0-h:1;n1-h:2"},
            "need innerClientAuthenticationCredentials",
        ),
    ],
)
def test_what_a_node_needs_to_start(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        open_cipher(config_from(secured_values(tmp_path, **change)))


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        (KEY[:-4], 0o600, "does not hold 32 bytes"),
        (b"no base64!", 0o600, "does not hold 32 bytes"),
        (KEY, 0o640, "readable by other users"),
    ],
)
def test_bad_key_files(tmp_path: Path, content: bytes, mode: int, words: str) -> None:
    values = secured_values(tmp_path)
    write_key(tmp_path, content).chmod(mode)
    with pytest.raises(ConfigError, match=words) as error:
        open_cipher(config_from(values))
    assert content.decode() not in str(error.value)


@pytest.mark.parametrize("key", ["initAuthenticationUser", "innerClientAuthenticationCredentials"])
@pytest.mark.parametrize(
    "text", ['{"username": "a-secret"', "[]", '{"username": "a-secret", "password": " "}']
)
def test_bad_accounts_of_the_configuration_are_not_shown(tmp_path: Path, key: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} is not JSON like") as error:
        config_from(secured_values(tmp_path, **{key: text}))
    assert "a-secret" not in str(error.value)
