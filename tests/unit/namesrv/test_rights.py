"""Who may register which broker name, by a list and without one."""

from pathlib import Path

import pytest

from namesrv.accounts import Accounts
from namesrv.rights import (
    AdminRights,
    BrokerIdentityError,
    BrokerRights,
    check_usable,
    is_in_certificate,
    parse_broker_identities,
)
from namesrv.route_info import Registrant
from remoting.acl import Signer
from remoting.command import RemotingCommand
from remoting.errors import RequestError
from remoting.route import QueueData, TopicRoute, format_topic_route
from sockets.tls import PeerNames
from tests.support.fake_connection import FakeConnection
from tests.unit.namesrv.registrations import account, accounts_file


def _registrant(rights: BrokerRights, name: str, host: str) -> Registrant:
    return rights.registrant(name, RemotingCommand(103), FakeConnection(7, host).as_connection)


def test_with_a_list_only_its_names_can_be_registered_and_only_by_its_hosts() -> None:
    rights = BrokerRights(parse_broker_identities(["broker-a=host:10.0.0.1,host:10.0.0.2"]))
    assert _registrant(rights, "broker-a", "10.0.0.2") == Registrant(7, "10.0.0.2", is_proven=True)
    for name, host in (("broker-a", "10.0.0.3"), ("broker-b", "10.0.0.1"), ("", "10.0.0.1")):
        with pytest.raises(RequestError, match=f"{name} may not be registered from {host}") as refusal:
            _registrant(rights, name, host)
        assert refusal.value.code == 16


def test_a_certificate_registers_the_names_that_its_own_names_stand_for() -> None:
    rights = BrokerRights(
        parse_broker_identities(
            [
                "broker-a=certificate:ledgermq://broker-a/*",
                "broker-b=certificate:ledgermq://broker-b/n0,certificate:*.brokers.example",
            ]
        )
    )

    def names(certificate: PeerNames) -> list[str]:
        connection = FakeConnection(7, "10.0.0.1")
        connection.peer_names = certificate
        request = RemotingCommand(103)
        found = (
            n for n in ("broker-a", "broker-b") if rights.may_register(n, request, connection.as_connection)
        )
        return list(found)

    assert names(PeerNames(uris=("ledgermq://broker-a/n2",))) == ["broker-a"]
    assert names(PeerNames(uris=("ledgermq://broker-b/n0",))) == ["broker-b"]
    assert names(PeerNames(uris=("ledgermq://broker-b/n1",))) == []
    assert names(PeerNames(uris=("ledgermq://broker-ab/n0", "x://ledgermq://broker-a/n0"))) == []
    assert names(PeerNames(dns=("b1.brokers.example",), common_name="b1")) == ["broker-b"]
    assert names(PeerNames(common_name="b1.brokers.example")) == ["broker-b"]
    assert names(PeerNames(dns=("other.example",), common_name="b1.brokers.example")) == []
    assert names(PeerNames(dns=("ledgermq://broker-a/n0",), common_name="ledgermq://broker-a/n0")) == []
    assert names(PeerNames()) == []


def test_only_a_star_stands_for_other_text() -> None:
    assert not is_in_certificate(PeerNames(dns=("b1",)), "b?")
    assert not is_in_certificate(PeerNames(dns=("b1",)), "b[12]")
    assert is_in_certificate(PeerNames(dns=("b[12]",)), "b[12]")


def test_an_account_registers_its_name_by_its_signature(tmp_path: Path) -> None:
    accounts = Accounts(accounts_file(tmp_path, account("a-key", "a long secret")))
    rights = BrokerRights(parse_broker_identities(["broker-a=account:a-key,host:10.0.0.9"]), accounts)
    connection = FakeConnection(7, "10.0.0.1").as_connection
    request = RemotingCommand(103, ext_fields={"brokerName": "broker-a"})
    Signer("a-key", "a long secret").sign(request)
    assert rights.registrant("broker-a", request, connection).is_proven
    assert not rights.may_register("broker-b", request, connection)
    Signer("a-key", "another secret").sign(request)
    assert not rights.may_register("broker-a", request, connection)


def test_a_list_that_nobody_could_satisfy_is_refused() -> None:
    allowed = parse_broker_identities(["a=host:1,certificate:x", "b=account:k"])
    check_usable(allowed, knows_certificates=True, has_accounts=True)
    check_usable(parse_broker_identities(["a=host:1"]), knows_certificates=False, has_accounts=False)
    with pytest.raises(BrokerIdentityError, match="--tls-client-auth optional or require"):
        check_usable(allowed, knows_certificates=False, has_accounts=True)
    with pytest.raises(BrokerIdentityError, match="needs --accounts"):
        check_usable(allowed, knows_certificates=True, has_accounts=False)


def test_with_accounts_administrators_sign_as_one_that_is_marked_so(tmp_path: Path) -> None:
    rows = account("a-key", "a long secret"), account("operator", "a long secret", "true")
    accounts = Accounts(accounts_file(tmp_path, *rows))
    rights = AdminRights(accounts, None)

    def remark(code: int, key: str = "") -> str | None:
        request = RemotingCommand(code, ext_fields={"topic": "T"})
        if key:
            Signer(key, "a long secret").sign(request)
        refusal = rights.refusal(request, FakeConnection(7, "10.0.0.1").as_connection)
        assert refusal is None or refusal.code == 16
        return None if refusal is None else refusal.remark

    for code in (100, 102, 205, 216, 217, 318, 327):
        assert remark(code, "operator") is None
        assert (
            remark(code)
            == f"request code {code} needs an account marked admin: no known account has signed it"
        )
        assert remark(code, "a-key") == f"request code {code} needs an account marked admin: a-key is none"
        assert remark(code, "nobody") == remark(code)
    for code in (101, 103, 104, 105, 106, 206, 319, 322):
        assert remark(code) is None, "it changes nothing, or says who may send it itself"


def test_a_broker_may_register_a_single_topic_of_its_own_name(tmp_path: Path) -> None:
    """RocketMQ 5 with enableSingleTopicRegister."""
    accounts = Accounts(accounts_file(tmp_path, account("a-key", "a long secret")))
    brokers = BrokerRights(
        parse_broker_identities(["broker-a=account:a-key", "broker-b=account:b"]), accounts
    )

    def may(rights: AdminRights, *names: str, body: bytes | None = None) -> bool:
        route = TopicRoute(tuple(QueueData(name, 4, 4, 6, 0) for name in names), ())
        body = format_topic_route(route) if body is None else body
        request = RemotingCommand(217, ext_fields={"topic": "T"}, body=body)
        Signer("a-key", "a long secret").sign(request)
        return rights.refusal(request, FakeConnection(7, "10.0.0.1").as_connection) is None

    assert may(AdminRights(accounts, brokers), "broker-a")
    assert not may(AdminRights(accounts, None), "broker-a")
    assert not may(AdminRights(accounts, brokers), "broker-b")
    assert not may(AdminRights(accounts, brokers), "broker-a", "broker-b")
    assert not may(AdminRights(accounts, brokers))
    assert not may(AdminRights(accounts, brokers), body=b"[")
    assert not may(AdminRights(accounts, brokers), body=b" " * 200_000)


def test_identities_of_one_name_may_be_given_in_several_texts() -> None:
    assert parse_broker_identities(["a=host:1", "b=host:2 , host:3", "a=host:4"]) == {
        "a": {"host:1", "host:4"},
        "b": {"host:2", "host:3"},
    }
    assert parse_broker_identities([]) == {}


@pytest.mark.parametrize(
    "text", ["", "a", "a=", "=host:1", "a=10.0.0.1", "a=host:", "a=name:x", "a=host:1,x", "a=cert:x"]
)
def test_text_that_is_no_identity_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(BrokerIdentityError, match=r"NAME=IDENTITY"):
        parse_broker_identities([text])
