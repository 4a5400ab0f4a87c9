"""The guard before every handler: signatures, rights, white lists, and what changes while the broker runs."""

import hmac
import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from broker.leadership import CLIENT_USER, MARK
from broker.state.changes import PutSettings
from broker.state.topics import HALF_TOPIC
from commitlog.record import Message
from remoting.acl import GRPC_USER, GrpcProof, Signer
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.headers.send import SendMessageRequestHeader, SendRequest
from remoting.quotas import Quota, QuotaRules
from tests.support.polling import loop_turns
from tests.support.secured import INNER, ROOT, Secured

ALICE = Signer("alice", "alice-secret")
GET_CONFIG = RequestCode.GET_TOPIC_CONFIG


@pytest.fixture
async def broker(tmp_path: Path) -> Secured:
    made = Secured(tmp_path)
    assert (await made.create_user("alice", "alice-secret")).code == 0
    return made


async def refused(broker: Secured, signer: Signer | None, code: RequestCode, **fields: str) -> str | None:
    answer = await broker.ask(signer, code, **fields)
    assert answer.code == 16, answer
    return answer.remark


async def test_without_a_right_signature_no_handler_is_reached(broker: Secured) -> None:
    assert await refused(broker, None, GET_CONFIG, topic="t") == "username cannot be null."
    assert await refused(broker, Signer("bob", "x"), GET_CONFIG, topic="t") == "User:bob is not found."
    wrong = await refused(broker, Signer("alice", "wrong"), GET_CONFIG, topic="t")
    assert wrong == "check signature failed."
    await broker.ask(ROOT, RequestCode.AUTH_UPDATE_USER, {"userStatus": "disable"}, username="alice")
    assert await refused(broker, ALICE, GET_CONFIG, topic="t") == "User:alice is disabled."


@pytest.mark.parametrize("change", ["topic", "body", "Signature", "added", "AccessKey"])
async def test_a_signature_is_for_one_request(broker: Secured, change: str) -> None:
    request = RemotingCommand(GET_CONFIG, opaque=5, ext_fields={"topic": "TBW102"}, body=b"x")
    ROOT.sign(request)
    if change == "body":
        request.body = b"y"
    else:
        request.ext_fields[change] = INNER.access_key if change == "AccessKey" else "changed"
    assert (await broker.send(request)).remark == "check signature failed."


async def test_old_clients_do_not_sign_one_field(broker: Secured) -> None:
    """`_UNIQUE_KEY_QUERY`, up to 4.9.3 (399)."""
    request = RemotingCommand(GET_CONFIG, opaque=5, ext_fields={"topic": "TBW102"}, version=399)
    ROOT.sign(request)
    request.ext_fields["_UNIQUE_KEY_QUERY"] = "true"
    assert (await broker.send(request)).code == 0
    request.version = 400
    assert (await broker.send(request)).remark == "check signature failed."


async def test_rights_are_asked_for_and_taken_away_at_once(broker: Secured) -> None:
    words = "User:alice has no permission to access Topic:TBW102 from 192.168.0.1, no matched policies."
    assert await refused(broker, ALICE, GET_CONFIG, topic="TBW102") == words
    assert (await broker.allow("alice", "Topic:TBW*", "Get")).code == 0
    assert (await broker.ask(ALICE, GET_CONFIG, topic="TBW102")).code == 0
    await broker.allow("alice", "Topic:TBW*", "Get", decision="Deny")
    denied = await refused(broker, ALICE, GET_CONFIG, topic="TBW102")
    assert denied == words.replace("no matched policies", "the decision is deny")


async def test_what_is_kept_of_sends_follows_the_rights(broker: Secured) -> None:
    def send(topic: str) -> SendRequest:
        header = SendMessageRequestHeader("p", topic, "TBW102", 4, 0, 0, 1)
        request = SendRequest(RequestCode.SEND_MESSAGE_V2, ext_fields=header.ext_fields())
        kept = RemotingCommand.__dict__["ext_fields"]
        signed = RemotingCommand(request.code, ext_fields=header.ext_fields())
        ALICE.sign(signed)
        kept.__set__(request, signed.ext_fields)
        return request

    def refusal(topic: str) -> bool:
        guard = broker.parts.router.guard
        assert guard is not None
        return guard(send(topic), broker.connection.as_connection) is not None

    assert [refusal("orders"), refusal("orders")] == [True, True]
    await broker.allow("alice", "Topic:orders", "Pub")
    assert [refusal("orders"), refusal("orders"), refusal("others")] == [False, False, True]
    broker.connection.remote_host = "10.0.0.1"
    await broker.allow("alice", "Topic:orders", "Pub", sourceIps=["192.168.0.1"])
    assert refusal("orders")
    await broker.ask(ROOT, RequestCode.AUTH_DELETE_ACL, subject="User:alice")
    broker.connection.remote_host = "192.168.0.1"
    assert refusal("orders")


async def test_rights_may_be_bound_to_addresses(broker: Secured) -> None:
    await broker.allow("alice", "Topic:*", "Get", sourceIps=["192.168.0.0/24"])
    assert (await broker.ask(ALICE, GET_CONFIG, topic="TBW102")).code == 0
    broker.connection.remote_host = "10.0.0.1"
    remark = await refused(broker, ALICE, GET_CONFIG, topic="TBW102")
    assert remark is not None
    assert "from 10.0.0.1, no matched" in remark


async def test_a_super_user_may_do_everything(broker: Secured) -> None:
    await broker.create_user("admin", "a-secret", userType="Super")
    assert (await broker.ask(Signer("admin", "a-secret"), RequestCode.GET_BROKER_CONFIG)).code == 0
    assert (await broker.ask(INNER, RequestCode.GET_BROKER_CONFIG)).code == 0


async def test_unreadable_requests_are_refused(broker: Secured) -> None:
    request = RemotingCommand(RequestCode.HEART_BEAT, opaque=5, body=b"{")
    ALICE.sign(request)
    answer = await broker.send(request)
    assert (answer.code, answer.remark) == (16, "parse authorization context error.")


async def test_white_lists_name_codes(tmp_path: Path) -> None:
    broker = Secured(tmp_path, authenticationWhitelist="351", authorizationWhitelist="351, 30")
    assert (await broker.ask(None, GET_CONFIG, topic="TBW102")).code == 0
    assert await refused(broker, None, RequestCode.GET_MAX_OFFSET) == "username cannot be null."
    broker = Secured(tmp_path, authenticationWhitelist="351")
    unproved = await refused(broker, None, GET_CONFIG, topic="TBW102")
    assert unproved == "Authorization failed. Please verify your access rights and try again."


async def test_signatures_alone_may_be_asked_for(tmp_path: Path) -> None:
    broker = Secured(tmp_path, authorizationEnabled=False)
    await broker.create_user("alice", "alice-secret")
    assert (await broker.ask(ALICE, RequestCode.GET_BROKER_CONFIG)).code == 0
    assert await refused(broker, None, RequestCode.GET_BROKER_CONFIG) == "username cannot be null."


async def test_rights_without_signatures_would_be_a_name_that_anybody_takes(tmp_path: Path) -> None:
    broker = Secured(tmp_path, authenticationEnabled=False)
    assert await refused(broker, Signer("root", "?"), GET_CONFIG, topic="t") == "check signature failed."


async def test_it_is_switched_on_and_off_while_the_broker_runs(tmp_path: Path) -> None:
    broker = Secured(tmp_path, authenticationEnabled=False, authorizationEnabled=False)
    router = broker.parts.router
    assert router.guard is None, "off, it costs nothing"
    await broker.ask(None, RequestCode.AUTH_CREATE_USER, {"password": "alice-secret"}, username="alice")
    assert (await broker.ask(ALICE, GET_CONFIG, topic="TBW102")).code == 0
    assert (await broker.set(None, authorizationEnabled="true", authenticationEnabled="true")).code == 0
    assert router.guard is not None
    assert await refused(broker, None, GET_CONFIG, topic="TBW102") == "username cannot be null."
    assert (await broker.set(ROOT, authorizationEnabled="false")).code == 0
    assert (await broker.ask(ALICE, GET_CONFIG, topic="TBW102")).code == 0
    assert (await broker.set(ROOT, authenticationEnabled="false")).code == 0
    assert router.guard is None


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"authKeyPath": ""}, "authKeyPath, a file with the key"),
        (
            {"innerClientAuthenticationCredentials": "", "dLegerPeers": "n0-h:1;n1-h:2"},
            "innerClientAuthenticationCredentials, the super user",
        ),
        (
            {"initAuthenticationUser": "", "innerClientAuthenticationCredentials": ""},
            "there is no enabled super user",
        ),
    ],
)
async def test_nobody_is_locked_out(tmp_path: Path, values: dict[str, Any], words: str) -> None:
    broker = Secured(tmp_path, authenticationEnabled=False, authorizationEnabled=False, **values)
    answer = await broker.set(None, authenticationEnabled="true")
    assert (answer.code, words in str(answer.remark)) == (29, True)


async def test_a_node_without_the_key_lets_nobody_in(tmp_path: Path) -> None:
    """Another node may have switched it on: this one refuses rather than staying open."""
    off: dict[str, Any] = {"authenticationEnabled": False, "authorizationEnabled": False}
    broker = Secured(tmp_path, **off)
    await broker.ask(None, RequestCode.AUTH_CREATE_USER, {"password": "alice-secret"}, username="alice")
    log = broker.log.reopened()
    blind = Secured(tmp_path, log=log, authKeyPath="", **off)
    await log.start()
    await blind.parts.state.propose(PutSettings({"authenticationEnabled": "true"}))
    assert blind.parts.state.access.users.keys() == {"alice"}
    assert await refused(blind, ALICE, GET_CONFIG, topic="TBW102") == "check signature failed."
    assert (await blind.ask(ROOT, GET_CONFIG, topic="TBW102")).code == 0


async def test_a_forwarded_request_is_its_clients(broker: Secured) -> None:
    """The node that passed it on has checked the client, and signs with its own account."""
    forwarded = {MARK: "1", CLIENT_USER: "alice", "username": "eve"}
    body = {"password": "eve-secret", "userType": "Super"}
    answer = await broker.ask(INNER, RequestCode.AUTH_CREATE_USER, body, **forwarded)
    assert answer.remark == "The super user can only be create by super user"
    answer = await broker.ask(INNER, RequestCode.AUTH_CREATE_USER, body, **forwarded | {CLIENT_USER: "root"})
    assert answer.code == 0


async def test_only_nodes_may_say_for_whom_they_ask(broker: Secured) -> None:
    await broker.allow("alice", "Cluster:*", "Update")
    answer = await broker.ask(
        ALICE,
        RequestCode.AUTH_CREATE_USER,
        {"password": "eve-secret", "userType": "Super"},
        **{MARK: "1", CLIENT_USER: "root", "username": "eve"},
    )
    assert answer.remark == "The super user can only be create by super user"


def proof(user: str = "alice", secret: str = "alice-secret", host: str = "10.0.0.9") -> dict[str, str]:
    signed = "20260131T050000Z"
    signature = hmac.new(secret.encode(), signed.encode(), "sha1").hexdigest().upper()
    return GrpcProof(user, signed, signature, host).ext_fields()


async def test_a_request_of_the_grpc_endpoint_is_its_clients(broker: Secured) -> None:
    await broker.allow("alice", "Topic:orders", "Get")
    answer = await broker.ask(INNER, GET_CONFIG, topic="orders", **proof())
    assert answer.code != 16
    remark = await refused(broker, INNER, GET_CONFIG, topic="other", **proof())
    assert remark is not None
    assert remark.startswith("User:alice has no permission to access Topic:other from 10.0.0.9")


@pytest.mark.parametrize(
    ("fields", "remark"),
    [
        (proof(secret="wrong"), "check signature failed."),
        (proof("bob"), "User:bob is not found."),
        ({GRPC_USER: "alice"}, "check signature failed."),
    ],
)
async def test_the_grpc_endpoints_clients_must_prove_their_names(
    broker: Secured, fields: dict[str, str], remark: str
) -> None:
    assert await refused(broker, INNER, GET_CONFIG, topic="orders", **fields) == remark


async def test_only_the_nodes_account_may_ask_for_grpc_clients(broker: Secured) -> None:
    """Any other would lend its own rights to all of them."""
    remark = await refused(broker, ROOT, GET_CONFIG, topic="orders", **proof())
    assert remark is not None
    assert remark.startswith("User:root may not ask for gRPC clients")


async def test_quotas_count_the_grpc_client_behind_the_endpoint(broker: Secured) -> None:
    await broker.allow("alice", "Topic:orders", "Get")
    broker.parts.core.shares.apply(QuotaRules(Quota(requests_per_s=1)))
    ask = partial(broker.ask, INNER, GET_CONFIG, topic="orders")
    codes = [(await ask(**proof(host="10.0.0.9"))).code for _ in range(4)]
    assert codes[3] == ResponseCode.SYSTEM_BUSY
    assert ResponseCode.SYSTEM_BUSY not in codes[:2]
    assert (await ask(**proof(host="10.0.0.8"))).code != ResponseCode.SYSTEM_BUSY
    broker.parts.core.shares.apply(QuotaRules(user=Quota(requests_per_s=1)))
    codes = [(await ask(**proof(host=f"10.0.0.{number}"))).code for number in range(3)]
    assert codes[2] == ResponseCode.SYSTEM_BUSY


async def test_refusals_are_counted_and_told_once(broker: Secured) -> None:
    before = len(broker.connection.warnings)
    await refused(broker, ALICE, GET_CONFIG, topic="TBW102")
    assert broker.parts.router.counts.refused[GET_CONFIG, 16] == 1
    (warning,) = broker.connection.warnings[before:]
    assert "User:alice has no permission" in warning


async def test_no_secret_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    broker = Secured(tmp_path)
    await broker.create_user("alice", "alice-secret")
    shown = [
        await broker.ask(ROOT, RequestCode.GET_BROKER_CONFIG),
        await broker.ask(ROOT, RequestCode.AUTH_GET_USER, username="alice"),
        await broker.ask(ROOT, RequestCode.AUTH_LIST_USER),
        await broker.ask(Signer("alice", "alice-secret"), RequestCode.GET_BROKER_CONFIG),
    ]
    told = caplog.text + repr(broker.parts.config) + "".join(f"{each}{each.body!r}" for each in shown)
    told += "".join(broker.connection.warnings) + repr(broker.parts.state.access.users)
    for secret in ("alice-secret", "root-secret", "node-secret"):
        assert secret not in told
    assert b"alice-secret" not in b"".join(bytes(record.body) for record in broker.log.messages)


@pytest.mark.parametrize(
    ("code", "field", "other"),
    [
        (RequestCode.VIEW_MESSAGE_BY_ID, "offset", {"topic": "mine"}),
        (RequestCode.CONSUMER_SEND_MSG_BACK, "offset", {"group": "mine"}),
        (RequestCode.END_TRANSACTION, "commitLogOffset", {"topic": "mine"}),
        (RequestCode.END_TRANSACTION, "commitLogOffset", {}),
    ],
)
async def test_a_message_named_by_its_position_is_its_topics(
    broker: Secured, code: RequestCode, field: str, other: dict[str, str]
) -> None:
    for resource in ("Topic:mine", "Group:mine"):
        await broker.allow("alice", resource, "All")
    kept = Message(HALF_TOPIC, 0, b"x", properties=b"REAL_TOPIC\x01theirs\x02")
    put = broker.log.put([Message("theirs", 0, b"x"), kept, Message("mine", 0, b"x")], lambda status: None)
    await loop_turns()
    guard = broker.parts.router.guard
    assert guard is not None

    def remark(position: int | str) -> str | None:
        request = RemotingCommand(code, ext_fields={field: str(position), **other})
        ALICE.sign(request)
        refusal = guard(request, broker.connection.as_connection)
        return None if refusal is None else refusal.remark

    theirs, half, mine = put.positions
    for position in (theirs, half):
        assert "no permission to access Topic:theirs" in str(remark(position))
    assert [remark(mine), remark(mine + 1), remark(10**9)] == [None] * 3
    assert remark("x") == "parse authorization context error."


def with_quota(broker: Secured) -> None:
    """Its connection counts."""
    broker.parts.core.shares.opened(broker.connection.as_connection)


async def test_the_quota_of_a_user_is_of_who_signed(tmp_path: Path) -> None:
    broker = Secured(tmp_path, userRequestsPerSecond=1, userInFlightMax=0)
    with_quota(broker)
    for name in ("alice", "bob"):
        assert (await broker.create_user(name, f"{name}-secret")).code == 0
        await broker.allow(name, "Topic:*", "Get")
    broker.connection.unread = 10**6
    usage = broker.connection.usage
    assert usage is not None
    assert usage.user is None, "super users have none"
    codes = [(await broker.ask(ALICE, GET_CONFIG, topic="TBW102")).code for _ in range(3)]
    assert codes == [0, 0, 2]
    assert (await refused(broker, Signer("alice", "wrong"), GET_CONFIG, topic="t")) is not None
    assert (await broker.ask(Signer("bob", "bob-secret"), GET_CONFIG, topic="TBW102")).code == 0
    answer = await broker.ask(ALICE, GET_CONFIG, topic="TBW102")
    assert str(answer.remark).startswith(
        "[QUOTA]system busy, start flow control for a while: user alice is over"
    )
    assert (await broker.set(ROOT, userRequestsPerSecond="0")).code == 0
    assert (await broker.ask(ALICE, GET_CONFIG, topic="TBW102")).code == 0


async def test_a_connection_of_another_node_has_no_quotas(broker: Secured) -> None:
    with_quota(broker)
    assert broker.connection.usage is not None
    await broker.ask(INNER, GET_CONFIG, topic="TBW102")
    assert broker.connection.usage is None
