"""Who may register which broker name, by a list and without one."""

import pytest

from namesrv.rights import BrokerIdentityError, BrokerRights, parse_broker_identities
from namesrv.route_info import Registrant
from remoting.command import RemotingCommand
from remoting.errors import RequestError
from tests.support.fake_connection import FakeConnection


def _registrant(rights: BrokerRights, name: str, host: str) -> Registrant:
    return rights.registrant(name, RemotingCommand(103), FakeConnection(7, host).as_connection)


def test_without_a_list_everybody_may_register_but_proves_nothing() -> None:
    assert _registrant(BrokerRights({}), "broker-a", "10.0.0.1") == Registrant(7, "10.0.0.1")


def test_with_a_list_only_its_names_can_be_registered_and_only_by_its_hosts() -> None:
    rights = BrokerRights(parse_broker_identities(["broker-a=host:10.0.0.1,host:10.0.0.2"]))
    assert _registrant(rights, "broker-a", "10.0.0.2") == Registrant(7, "10.0.0.2", is_proven=True)
    for name, host in (("broker-a", "10.0.0.3"), ("broker-b", "10.0.0.1"), ("", "10.0.0.1")):
        with pytest.raises(RequestError, match=f"{name} may not be registered from {host}") as refusal:
            _registrant(rights, name, host)
        assert refusal.value.code == 16


def test_other_identities_can_be_used() -> None:
    rights = BrokerRights({"a": frozenset({"cert:node-1"})}, lambda _, __: ("host:10.0.0.9", "cert:node-1"))
    assert _registrant(rights, "a", "10.0.0.9").is_proven


def test_identities_of_one_name_may_be_given_in_several_texts() -> None:
    assert parse_broker_identities(["a=host:1", "b=host:2 , host:3", "a=host:4"]) == {
        "a": {"host:1", "host:4"},
        "b": {"host:2", "host:3"},
    }
    assert parse_broker_identities([]) == {}


@pytest.mark.parametrize(
    "text", ["", "a", "a=", "=host:1", "a=10.0.0.1", "a=host:", "a=name:x", "a=host:1,x"]
)
def test_text_that_is_no_identity_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(BrokerIdentityError, match=r"NAME=IDENTITY"):
        parse_broker_identities([text])
