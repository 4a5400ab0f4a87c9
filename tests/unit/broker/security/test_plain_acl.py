"""Access control of RocketMQ 4: the cases of PlainPermissionManagerTest, PlainAccessValidatorTest and
RemoteAddressStrategyTest, by behaviour; the file, and the commands that change it.
"""

from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from broker.config import ConfigError
from broker.security.decisions import refusal as refusal_by_policies
from broker.security.plain_acl import PlainAcl, PlainAclError, addresses
from broker.security.plain_acl_file import PlainAclFile
from broker.security.required_access import required_access
from remoting.acl import Signer
from remoting.codes import RequestCode as Code
from remoting.command import RemotingCommand
from remoting.quotas import Quota, QuotaRules, networks
from tests.support.secured import ROOT, Secured

ADMIN, USER = Signer("RocketMQ-admin", "12345678"), Signer("RocketMQ", "1234567890")
ACCOUNTS: dict[str, list[Any]] = {
    "globalWhiteRemoteAddresses": ["10.10.103.*"],
    "accounts": [
        {"accessKey": "RocketMQ-admin", "secretKey": "12345678", "admin": True},
        {
            "accessKey": "RocketMQ",
            "secretKey": "1234567890",
            "admin": False,
            "whiteRemoteAddress": "192.168.7.7",
            "defaultTopicPerm": "DENY",
            "defaultGroupPerm": "SUB",
            "topicPerms": ["topicA=DENY", "topicB=PUB|SUB", "topicC=SUB"],
            "groupPerms": ["groupA=DENY", "groupB=PUB|SUB"],
        },
    ],
}
ACL = PlainAcl.parse(ACCOUNTS)


def decide(
    signer: Signer | None, code: int, body: Any = None, /, host: str = "10.0.0.1", **fields: str
) -> str | None:
    data = b"" if body is None else orjson.dumps(body)
    request = RemotingCommand(code, ext_fields=fields, body=data)
    if signer is not None:
        signer.sign(request)
    return ACL.refusal(request, host, "c1")


@pytest.mark.parametrize(
    ("code", "fields", "expected"),
    [
        (Code.SEND_MESSAGE, {"topic": "topicB"}, None),
        (Code.SEND_MESSAGE_V2, {"b": "topicB"}, None),
        (Code.SEND_BATCH_MESSAGE, {"b": "topicA"}, "No default permission for topic:topicA"),
        (Code.SEND_MESSAGE_V2, {"b": "topicC"}, "No default permission for topic:topicC"),
        (Code.SEND_MESSAGE_V2, {"b": "another"}, "No default permission for topic:another"),
        (Code.SEND_MESSAGE_V2, {"b": "%RETRY%groupB"}, None),
        (Code.SEND_MESSAGE_V2, {"b": "RMQ_SYS_TRACE_TOPIC"}, None),
        (Code.PULL_MESSAGE, {"topic": "topicC", "consumerGroup": "groupC"}, None),
        (
            Code.PULL_MESSAGE,
            {"topic": "topicC", "consumerGroup": "groupA"},
            "No default permission for group:groupA",
        ),
        (Code.CONSUMER_SEND_MSG_BACK, {"group": "groupA"}, "No default permission for group:groupA"),
        (Code.UPDATE_CONSUMER_OFFSET, {"topic": "topicC", "consumerGroup": "groupB"}, None),
        (Code.GET_MAX_OFFSET, {"topic": "topicA"}, None),
        (Code.GET_BROKER_RUNTIME_INFO, {}, None),
        (
            Code.UPDATE_AND_CREATE_TOPIC,
            {"topic": "topicB"},
            "Need admin permission for request code=17, but accessKey=RocketMQ is not",
        ),
        (
            Code.UPDATE_BROKER_CONFIG,
            {},
            "Need admin permission for request code=25, but accessKey=RocketMQ is not",
        ),
        (
            Code.LEDGERMQ_TRANSFER_LEADER,
            {},
            "Need admin permission for request code=65002, but accessKey=RocketMQ is not",
        ),
        (Code.HEART_BEAT, {}, "the request cannot be read"),
    ],
)
def test_what_an_account_may_do(code: int, fields: dict[str, str], expected: str | None) -> None:
    assert decide(USER, code, **fields) == expected
    if code != Code.HEART_BEAT:
        assert decide(ADMIN, code, **fields) is None, "an administrator without lists may do everything"


def test_a_heartbeat_needs_all_it_names() -> None:
    consumer = {"groupName": "groupB", "subscriptionDataSet": [{"topic": "topicB"}, {"topic": "topicC"}]}
    assert decide(USER, Code.HEART_BEAT, {"consumerDataSet": [consumer]}) is None
    consumer["subscriptionDataSet"] = [{"topic": "topicA"}]
    remark = decide(USER, Code.HEART_BEAT, {"consumerDataSet": [consumer]})
    assert remark == "No default permission for topic:topicA"


def test_who_signs() -> None:
    send = (Code.SEND_MESSAGE_V2, None)
    assert decide(None, *send, b="topicB") == "No accessKey is configured"
    assert decide(Signer("another", "x"), *send, b="topicB") == "No acl config for another"
    wrong = decide(Signer("RocketMQ", "wrong"), *send, b="topicB")
    assert wrong == "Check signature failed for accessKey=RocketMQ"
    assert decide(None, *send, host="10.10.103.45", b="topicA") is None, "a global white address"
    assert decide(Signer("RocketMQ", "wrong"), *send, host="192.168.7.7", b="topicA") is None
    assert decide(None, *send, host="192.168.7.7", b="topicA") == "No accessKey is configured"


def test_an_administrator_with_lists_is_bound_to_them() -> None:
    row = {"accessKey": "an-admin", "secretKey": "12345678", "admin": True, "topicPerms": ["topicB=PUB"]}
    acl = PlainAcl.parse({"accounts": [row]})
    for topic, expected in (("topicB", None), ("other", "No default permission for topic:other")):
        request = RemotingCommand(Code.SEND_MESSAGE_V2, ext_fields={"b": topic})
        Signer("an-admin", "12345678").sign(request)
        assert acl.refusal(request, "10.0.0.1", "c1") == expected


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("*", ["1.2.3.4", "::1"], []),
        ("*.*.*.*", ["1.2.3.4"], []),
        (None, [], ["1.2.3.4"]),
        (" ", [], ["1.2.3.4"]),
        ("127.0.0.1", ["127.0.0.1"], ["127.0.0.2", "nonsense", ""]),
        ("127.0.0.1,127.0.0.2", ["127.0.0.1", "127.0.0.2"], ["127.0.0.3"]),
        ("127.0.0.{1,2}", ["127.0.0.1", "127.0.0.2"], ["127.0.0.3"]),
        ("127.0.0.1-200", ["127.0.0.1", "127.0.0.200"], ["127.0.0.201"]),
        ("127.0.0.*", ["127.0.0.0", "127.0.0.255"], ["127.0.1.0"]),
        ("127.0.1-20.*", ["127.0.1.1", "127.0.20.9"], ["127.0.21.0"]),
        ("127.*.*.*", ["127.9.8.7"], ["128.0.0.1", "::1"]),
        ("1:2:3:4:5:6:7:8", ["1:2:3:4:5:6:7:8"], ["1:2:3:4:5:6:7:9"]),
        ("1050::0005:0600:300c:{1,2}", ["1050::5:600:300c:1"], ["1050::5:600:300c:3"]),
        ("5:6:7:8:9:a:b:1-1f", ["5:6:7:8:9:a:b:1f"], ["5:6:7:8:9:a:b:20", "1.2.3.4"]),
        ("*:*:*:*:*:*:*:*", ["::1", "1.2.3.4"], []),
        ("::1", ["::1", "0:0:0:0:0:0:0:1"], ["::2", ""]),
        ("192.100-150.*.*", ["192.130.0.2"], ["192.99.0.2", "192.151.0.2"]),
        (
            "1050::5:600:300c:1-200",
            ["1050:0:0:0:5:600:300c:1", "1050::5:600:300c:200"],
            ["1050::5:600:300c:0", "1050::5:600:300c:201", "1050::1:5:600:300c:1"],
        ),
        ("1050::5:600:300c:*", ["1050::5:600:300c:0", "1050::5:600:300c:ffff"], ["1050::5:600:300d:0"]),
        (
            "1050::5:600:300c:1-200:*",
            ["1050::5:600:300c:1:0", "1050::5:600:300c:200:ffff"],
            ["1050::5:600:300c:201:0"],
        ),
        ("::*", ["::ffff"], ["::1:0"]),
        ("5:7:6:*", ["5:7:6::1", "5:7:6:ffff:1:2:3:4"], ["5:7:7::1"]),
        ("5:7:6:1-20", ["5:7:6:20::1"], ["5:7:6:21::1"]),
    ],
)
def test_white_addresses(pattern: str | None, matching: list[str], others: list[str]) -> None:
    matches = addresses(pattern)
    assert all(map(matches, matching))
    assert not any(map(matches, others))


@pytest.mark.parametrize(
    "pattern",
    [
        *("127.0.0.1-256", "127.0.0.20-1", "127.0.*", "a.b.c.d", "127.0.0.{1,x}", "127.0.0{1}", "1.2.3.x-4"),
        *("256.0.0.1", "::1ggg", "127.0.0.1,2,3}", "::1,2,3}", "192.168.{1}", "{192.168.1}", "{192.168.1.1}"),
        *("127.0.0.-1-200", "127.0.0.0-256", "5::6::*", "1:2:3:4:5:6:7:8:*", "5:6:1-fffff", "5:x:*", 5),
    ],
)
def test_bad_addresses(pattern: object) -> None:
    with pytest.raises(PlainAclError):
        addresses(pattern)


@pytest.mark.parametrize(
    "data",
    [
        [],
        {"accounts": {}},
        {"accounts": [1]},
        {"accounts": [{"accessKey": "short", "secretKey": "1234567"}]},
        {"accounts": [{"accessKey": "longer-1", "secretKey": "123456"}]},
        {"accounts": [{"accessKey": "longer-1", "secretKey": "1234567", "topicPerms": ["a"]}]},
        {"accounts": [{"accessKey": "longer-1", "secretKey": "1234567", "topicPerms": ["a=PUB=SUB"]}]},
        {"accounts": [{"accessKey": "longer-1", "secretKey": "1234567", "topicPerms": ["a="]}]},
        {"accounts": [{"accessKey": "longer-1", "secretKey": "1234567", "groupPerms": ["=SUB"]}]},
        {"accounts": [{"accessKey": "longer-1", "secretKey": "1234567", "groupPerms": [""]}]},
        {"accounts": [{"secretKey": "1234567"}]},
        {"accounts": [{"accessKey": "longer-1"}]},
    ],
)
def test_bad_files(data: Any) -> None:
    with pytest.raises(PlainAclError) as error:
        PlainAcl.parse(data)
    assert "123456" not in str(error.value)


def test_a_permission_that_is_not_known_is_none() -> None:
    row = {"accessKey": "an-account", "secretKey": "12345678", "topicPerms": ["a=1", "b=SUB|PUB", "c=ANY"]}
    row["defaultTopicPerm"] = "2"
    account = PlainAcl.parse({"accounts": [row]}).accounts["an-account"]
    assert {topic: len(actions) for topic, actions in account.topics.items()} == {"a": 0, "b": 2, "c": 0}
    assert not account.default_topic
    assert not account.default_group


@pytest.mark.parametrize("topic", ["topicA", "topicB", "topicC", "another"])
@pytest.mark.parametrize("group", ["groupA", "groupB", "another"])
def test_the_same_as_policies(topic: str, group: str) -> None:
    """RocketMQ 5 makes users and policies of the accounts: they allow the same sends and pulls."""
    rights = ACL.accounts["RocketMQ"].rights()
    for code, fields in (
        (Code.SEND_MESSAGE_V2, {"b": topic}),
        (Code.PULL_MESSAGE, {"topic": topic, "consumerGroup": group}),
    ):
        accesses = required_access(RemotingCommand(code, ext_fields=fields), "c1")
        allowed = all(refusal_by_policies(rights, access, "10.0.0.1") is None for access in accesses)
        assert allowed == (decide(USER, code, **fields) is None)


OFF: dict[str, Any] = {"authenticationEnabled": False, "authorizationEnabled": False}


def write(path: Path, data: Any) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(data if isinstance(data, str) else yaml.safe_dump(data), encoding="utf-8")
    return path


@pytest.fixture
async def broker(tmp_path: Path) -> Secured:
    write(tmp_path / "config/plain_acl.yml", ACCOUNTS)
    return Secured(tmp_path, aclEnable=True, **OFF)


def file_of(broker: Secured) -> PlainAclFile:
    (file,) = (each for each in broker.parts.features.services if isinstance(each, PlainAclFile))
    return file


async def test_the_file_decides_while_rocketmq_5s_is_off(broker: Secured) -> None:
    assert (await broker.ask(None, Code.GET_BROKER_CONFIG)).code == 1
    assert (await broker.ask(USER, Code.GET_BROKER_CONFIG)).code == 0
    refused = await broker.ask(USER, Code.AUTH_CREATE_USER, {"password": "p"}, username="u")
    assert "Need admin permission" in str(refused.remark)
    assert (await broker.set(ADMIN, authenticationEnabled="true")).code == 0
    assert (await broker.ask(ADMIN, Code.GET_BROKER_CONFIG)).remark == "User:RocketMQ-admin is not found."
    assert (await broker.set(ROOT, authenticationEnabled="false")).code == 0
    assert (await broker.ask(USER, Code.GET_BROKER_CONFIG)).code == 0


async def test_the_quota_is_of_the_account_that_signed(tmp_path: Path) -> None:
    node = Signer("inner-node", "inner-secret")
    row = {"accessKey": node.access_key, "secretKey": node.secret_key}
    write(tmp_path / "config/plain_acl.yml", {"accounts": [*ACCOUNTS["accounts"], row | {"admin": True}]})
    inner = orjson.dumps(row).decode()
    values = OFF | {"userRequestsPerSecond": 1, "innerClientAuthenticationCredentials": inner}
    broker = Secured(tmp_path, aclEnable=True, **values)
    shares, connection = broker.parts.core.shares, broker.connection
    shares.opened(connection.as_connection)
    connection.unread = 10**6
    for signer, codes in ((ADMIN, [0, 0, 0]), (USER, [0, 0, 2]), (node, [0, 0, 0])):
        answers = [await broker.ask(signer, Code.GET_TOPIC_CONFIG, topic="TBW102") for _ in codes]
        assert [answer.code for answer in answers] == codes
    assert connection.usage is None, "the other nodes have none"
    shares.apply(QuotaRules(Quota(requests_per_s=1), endpoints=networks(connection.remote_host)))
    shares.opened(connection.as_connection)
    assert (await broker.ask(node, Code.GET_TOPIC_CONFIG, topic="TBW102")).code == 0
    assert connection.usage is not None, "a gRPC endpoint's clients have quotas, whatever it asks for itself"
    assert connection.usage.is_endpoint


def test_a_white_address_is_no_account() -> None:
    request = RemotingCommand(Code.GET_BROKER_CONFIG, ext_fields={"AccessKey": "RocketMQ"})
    hosts = ("10.0.0.1", "192.168.7.7", "10.10.103.4")
    signers = [ACL.signer(request, host) for host in hosts]
    assert [signer and signer.access_key for signer in signers] == ["RocketMQ", None, None]
    assert ACL.signer(RemotingCommand(1), "10.0.0.1") is None


async def test_a_changed_file_is_read_again_and_a_broken_one_is_not(broker: Secured) -> None:
    file = file_of(broker)
    await file.look()
    rows = {"accounts": [{"accessKey": "another-1", "secretKey": "another-secret"}]}
    write(file.path, rows)
    await file.look()
    assert file.acl.accounts.keys() == {"another-1"}
    for broken in ("accounts: [", "accounts: [{accessKey: short}]", "a" * (4 * 1024 * 1024 + 1)):
        write(file.path, broken)
        await file.look()
        assert file.acl.accounts.keys() == {"another-1"}
    file.path.unlink()
    await file.look()
    assert file.acl.accounts.keys() == {"another-1"}


async def test_mqadmins_commands_of_49_change_the_file(broker: Secured) -> None:
    file = file_of(broker)
    account = {
        "accessKey": "new-account",
        "secretKey": "new-secret",
        "admin": "false",
        "topicPerms": "a=PUB,b=SUB",
        "groupPerms": "g=SUB",
        "defaultTopicPerm": "DENY",
        "whiteRemoteAddress": "",
    }
    put, delete = Code.UPDATE_AND_CREATE_ACL_CONFIG, Code.DELETE_ACL_CONFIG
    assert (await broker.ask(ADMIN, put, **account)).code == 0
    new = Signer("new-account", "new-secret")
    assert (await broker.ask(new, Code.GET_BROKER_CONFIG)).code == 0
    assert file.path.stat().st_mode & 0o077 == 0
    changed = {"accessKey": "new-account", "secretKey": "new-secret-2"}
    assert (await broker.ask(ADMIN, put, **changed)).code == 0
    row = yaml.safe_load(file.path.read_text())["accounts"][-1]
    assert (row["secretKey"], row["topicPerms"]) == ("new-secret-2", ["a=PUB", "b=SUB"])
    shown = await broker.ask(ADMIN, Code.GET_BROKER_CLUSTER_ACL_INFO)
    assert orjson.loads(shown.ext_fields["version"])["counter"] == 2
    assert str(file.path) in orjson.loads(shown.ext_fields["allAclFileVersion"])
    assert (await broker.ask(ADMIN, delete, accessKey="new-account")).code == 0
    gone = await broker.ask(ADMIN, delete, accessKey="new-account")
    words = "The accesskey[new-account] corresponding to accessConfig has been deleted failed."
    assert (gone.code, gone.remark) == (210, words)
    assert (await broker.ask(new, Code.GET_BROKER_CONFIG)).remark == "No acl config for new-account"


async def test_an_empty_list_or_address_takes_away_and_a_missing_one_does_not(broker: Secured) -> None:
    file, put = file_of(broker), Code.UPDATE_AND_CREATE_ACL_CONFIG
    account = {"accessKey": "new-account", "secretKey": "new-secret"}
    lists = {"topicPerms": "a=PUB", "groupPerms": "g=SUB", "whiteRemoteAddress": "192.168.1.1"}
    assert (await broker.ask(ADMIN, put, **account, **lists)).code == 0
    assert (await broker.ask(ADMIN, put, **account, topicPerms="")).code == 0
    known = file.acl.accounts["new-account"]
    assert (list(known.topics), list(known.groups)) == ([], ["g"])
    assert known.is_white("192.168.1.1")
    assert (await broker.ask(ADMIN, put, **account, groupPerms="", whiteRemoteAddress="")).code == 0
    known = file.acl.accounts["new-account"]
    assert not known.groups
    assert not known.is_white("192.168.1.1")


async def test_the_last_account_may_be_deleted(broker: Secured) -> None:
    write(file_of(broker).path, {"accounts": [ACCOUNTS["accounts"][0]]})
    await file_of(broker).look()
    assert (await broker.ask(ADMIN, Code.DELETE_ACL_CONFIG, accessKey="RocketMQ-admin")).code == 0
    assert not file_of(broker).acl.accounts
    assert (await broker.ask(ADMIN, Code.GET_BROKER_CONFIG)).remark == "No acl config for RocketMQ-admin"


async def test_a_deleted_account_is_out_and_the_others_go_on(broker: Secured) -> None:
    rows = [
        {"accessKey": "ak11111", "secretKey": "1234567", "topicPerms": ["topic-acl=PUB"]},
        {
            "accessKey": "ak22222",
            "secretKey": "7654321",
            "topicPerms": ["topic-acl=SUB"],
            "groupPerms": ["GID_acl=SUB"],
        },
    ]
    file, producer, consumer = file_of(broker), Signer("ak11111", "1234567"), Signer("ak22222", "7654321")

    def may(signer: Signer, code: Code, **fields: str) -> bool:
        request = RemotingCommand(code, ext_fields=fields)
        signer.sign(request)
        return file.acl.refusal(request, "10.0.0.1", "c1") is None

    pull = {"topic": "topic-acl", "consumerGroup": "GID_acl"}
    for accounts, may_pull in ((rows, True), (rows[:1], False)):
        write(file.path, {"accounts": accounts})
        await file.look()
        assert may(producer, Code.SEND_MESSAGE, topic="topic-acl")
        assert may(producer, Code.SEND_MESSAGE_V2, b="topic-acl")
        assert not may(producer, Code.PULL_MESSAGE, **pull)
        assert may(consumer, Code.PULL_MESSAGE, **pull) == may_pull
        assert not may(consumer, Code.SEND_MESSAGE, topic="topic-acl")


async def test_global_white_addresses_are_changed(broker: Secured) -> None:
    white = Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG
    assert (await broker.ask(ADMIN, white, globalWhiteAddrs="192.168.0.*, 10.0.0.1")).code == 0
    assert (await broker.ask(None, Code.GET_BROKER_CONFIG)).code == 0
    assert (await broker.ask(None, white, globalWhiteAddrs="192.168.0.{")).code == 211
    assert (await broker.ask(None, Code.GET_BROKER_CONFIG)).code == 0, "a bad change changes nothing"


@pytest.mark.parametrize(
    "change",
    [{"secretKey": "short"}, {"accessKey": "short"}, {"topicPerms": "a=FLY"}, {"topicPerms": "a"}],
)
async def test_bad_accounts_are_refused(broker: Secured, change: dict[str, str]) -> None:
    before = file_of(broker).path.read_bytes()
    account = {"accessKey": "new-account", "secretKey": "new-secret"} | change
    answer = await broker.ask(ADMIN, Code.UPDATE_AND_CREATE_ACL_CONFIG, **account)
    assert answer.code == 209
    assert account["secretKey"] not in str(answer.remark)
    assert file_of(broker).path.read_bytes() == before


async def test_without_a_usable_file_the_node_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"plain_acl.yml cannot be used"):
        Secured(tmp_path, aclEnable=True, **OFF)
    write(tmp_path / "config/plain_acl.yml", "accounts: [{secretKey: a-secret-1}]")
    with pytest.raises(ConfigError, match="should longer than 6") as error:
        Secured(tmp_path, aclEnable=True, **OFF)
    assert "a-secret-1" not in str(error.value)


async def test_accounts_become_users(tmp_path: Path) -> None:
    write(tmp_path / "config/plain_acl.yml", ACCOUNTS)
    with pytest.raises(ConfigError, match="needs authKeyPath"):
        Secured(tmp_path, migrateAuthFromV1Enabled=True, authKeyPath="", **OFF)
    broker = Secured(tmp_path, migrateAuthFromV1Enabled=True)
    broker.log.set_writable(False)
    broker.log.set_writable(True)
    await broker.settled()
    assert broker.parts.state.access.users.keys() == {"RocketMQ-admin", "RocketMQ"}
    assert (await broker.ask(ADMIN, Code.GET_BROKER_CONFIG)).code == 0
    assert (await broker.ask(USER, Code.GET_BROKER_CONFIG)).code == 16
    records = len(broker.log.messages)
    broker.log.set_writable(False)
    broker.log.set_writable(True)
    await broker.settled()
    assert len(broker.log.messages) == records


async def test_a_migration_leaves_users_as_they_are_and_passes_over_what_no_user_can_have(
    tmp_path: Path,
) -> None:
    path = tmp_path / "config/plain_acl.yml"
    write(path, {"accounts": []})
    broker = Secured(tmp_path, migrateAuthFromV1Enabled=True)
    assert (await broker.create_user("RocketMQ", "its own secret")).code == 0
    too_long = {"accessKey": "too-long", "secretKey": "12345678", "topicPerms": [f"{'t' * 300}=PUB"]}
    rows: list[Any] = [too_long, *ACCOUNTS["accounts"]]
    write(path, {"accounts": rows})
    await file_of(broker).look()
    broker.log.set_writable(False)
    broker.log.set_writable(True)
    await broker.settled()
    access = broker.parts.state.access
    assert access.users.keys() == {"RocketMQ", "RocketMQ-admin"}
    assert access.rights.keys() == {"RocketMQ-admin"}
    assert (await broker.ask(USER, Code.GET_BROKER_CONFIG)).remark == "check signature failed."


async def test_the_watcher_ends(broker: Secured) -> None:
    file = file_of(broker)
    await file.start()
    await file.stop()
