"""Which policy entry decides: the cases of RocketMQ's AuthorizationEvaluatorTest and ResourceTest, and what
they leave open.
"""

from typing import Any

import pytest

from broker.security.decisions import Access, is_about, refusal
from broker.state.access import (
    ENTRIES_MAX,
    AccessError,
    AccessList,
    Action,
    Pattern,
    PolicyType,
    Resource,
    ResourceType,
)

NO_MATCH = "no matched policies."
DENIED = "the decision is deny."
NEAR = "192.168.0.0/24"


def rights(*rows: tuple[Any, ...]) -> AccessList:
    """Each row is an update: resources and actions separated by commas, source, decision, policy type."""
    made: AccessList | None = None
    for resources, actions, source, decision, *kind in rows:
        entries = [
            {
                "resource": resource,
                "actions": actions.split(","),
                "sourceIps": [source] if source else None,
                "decision": decision,
            }
            for resource in resources.split(",")
        ]
        body = {"policies": [{"policyType": kind[0] if kind else None, "entries": entries}]}
        new = AccessList.from_json(body, "User:test")
        made = new if made is None else made.updated(new)
    assert made is not None
    return made


def topic(name: str, *actions: Action) -> Access:
    return Access(ResourceType.TOPIC, name, actions or (Action.PUB,))


def group(name: str) -> Access:
    return Access(ResourceType.GROUP, name, (Action.SUB,))


def decide(have: AccessList | None, access: Access, source: str = "192.168.0.1") -> str | None:
    return refusal(have, access, source)


@pytest.mark.parametrize("source", [NEAR, None, "192.168.0.1"])
def test_a_prefix_allows_from_its_network(source: str | None) -> None:
    assert decide(rights(("Topic:test*", "Pub", source, "Allow")), topic("test")) is None


def test_all_resources_of_a_request_are_asked_for_one_by_one() -> None:
    have = rights(("Topic:test*,Group:test*", "Sub", NEAR, "Allow"))
    assert decide(have, topic("test", Action.SUB)) is None
    assert decide(have, group("test")) is None


def test_what_matches_nothing_is_refused() -> None:
    have = rights(("Topic:test*", "Pub", NEAR, "Allow"))
    assert decide(None, topic("test")) == NO_MATCH
    assert decide(have, topic("abc")) == NO_MATCH
    assert decide(have, topic("test", Action.SUB)) == NO_MATCH
    assert decide(have, topic("test"), "10.10.0.1") == NO_MATCH
    assert decide(have, topic("test"), "no address") == NO_MATCH
    assert decide(rights(("Topic:test*", "Pub", NEAR, "Deny")), topic("test")) == DENIED


def test_the_most_specific_resource_decides() -> None:
    have = rights(
        ("*", "Pub,Sub", NEAR, "Allow"),
        ("Topic:*", "Pub,Sub", NEAR, "Deny"),
        ("Topic:test*", "Pub,Sub", NEAR, "Allow"),
        ("Topic:test-1", "Pub,Sub", NEAR, "Deny"),
    )
    assert decide(have, topic("test-1")) == DENIED
    assert decide(have, topic("test-2")) is None
    assert decide(have, topic("abc")) == DENIED
    assert decide(have, group("test-2")) is None


def test_the_longer_prefix_decides() -> None:
    have = rights(
        ("Topic:test*", "Pub", NEAR, "Allow"),
        ("Topic:test_*", "Pub", NEAR, "Deny"),
        ("Topic:test_001", "Pub", NEAR, "Deny"),
    )
    assert decide(have, topic("test_001")) == DENIED
    assert decide(have, topic("test_002")) == DENIED
    assert decide(have, topic("test-2")) is None


def test_the_default_policy_is_asked_last() -> None:
    have = rights(("Topic:test*", "Pub", NEAR, "Deny"))
    assert decide(have, topic("abc")) == NO_MATCH
    have = have.updated(rights(("Topic:*", "Pub", None, "Allow", "Default")))
    assert decide(have, topic("abc")) is None
    assert decide(have, topic("test")) == DENIED


def test_one_of_the_actions_is_enough_and_all_is_each() -> None:
    have = rights(("Topic:a", "Get", None, "Allow"), ("Topic:b", "All", None, "Allow"))
    assert decide(have, topic("a", Action.SUB, Action.GET)) is None
    assert decide(have, topic("a", Action.SUB)) == NO_MATCH
    assert decide(have, topic("b", Action.DELETE)) is None


def test_an_entry_about_the_same_resource_is_replaced() -> None:
    have = rights(("Topic:a", "Pub", NEAR, "Allow"), ("Topic:a", "Sub", None, "Deny"))
    (entry,) = have.policies[PolicyType.CUSTOM]
    assert (entry.actions, entry.source_ips) == ((Action.SUB,), ())
    left = have.without(PolicyType.CUSTOM, Resource.parse("Topic:a"))
    assert not left.policies
    assert have.without(PolicyType.DEFAULT, Resource.parse("Topic:a")) == have


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("*", Resource(ResourceType.ANY, "", Pattern.ANY)),
        ("Topic:*", Resource(ResourceType.TOPIC, "", Pattern.ANY)),
        ("topic:test*", Resource(ResourceType.TOPIC, "test", Pattern.PREFIXED)),
        ("Group:test", Resource(ResourceType.GROUP, "test")),
        ("Namespace:n", Resource(ResourceType.NAMESPACE, "n")),
        ("Cluster:c", Resource(ResourceType.CLUSTER, "c")),
    ],
)
def test_resources_are_read_and_written(key: str, expected: Resource) -> None:
    made = Resource.parse(key)
    assert made == expected
    assert made.key.lower() == key.lower()


def test_a_resource_covers_its_own_type_only() -> None:
    assert is_about(Resource.parse("*"), ResourceType.GROUP, "g")
    assert not is_about(Resource.parse("Topic:*"), ResourceType.GROUP, "g")
    assert not is_about(Resource.parse("Topic:g"), ResourceType.TOPIC, "g2")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"resource": None}, "The resource is null."),
        ({"resource": "Nothing:t"}, "The resource type is null."),
        ({"resource": "Any:t"}, "The resource type is null."),
        ({"resource": "Topic:" + "t" * 256}, "more than 255"),
        ({"actions": []}, "The actions is empty."),
        ({"actions": None}, "The actions is empty."),
        ({"actions": ["Fly"]}, "The actions is empty."),
        ({"actions": ["Pub", "Any"]}, "The actions can not be Any."),
        ({"sourceIps": [""]}, "The source ip is empty."),
        ({"sourceIps": ["10.0.0.0/40"]}, "The source ip is invalid."),
        ({"sourceIps": ["10.0.0.1"] * 101}, "at most 100"),
        ({"decision": None}, "The decision is null or illegal."),
    ],
)
def test_bad_entries_are_refused(change: dict[str, Any], words: str) -> None:
    entry = {"resource": "Topic:t", "actions": ["Pub"], "sourceIps": None, "decision": "Allow"} | change
    with pytest.raises(AccessError, match=words):
        AccessList.from_json({"policies": [{"entries": [entry]}]}, "User:test")


@pytest.mark.parametrize(
    ("body", "subject", "words"),
    [
        ({}, "User:test", "The policies is empty."),
        ({"policies": [{"entries": []}]}, "User:test", "The policy entries is empty."),
        ({"policies": [{"entries": [1]}]}, "User:test", "The policy entries is empty."),
        ({"policies": [{}]}, "Role:test", "The subject type is null."),
        ({"policies": [{}]}, "User: ", "username can not be blank"),
        ({"policies": [{}]}, "User:" + "u" * 256, "more than 255"),
    ],
)
def test_bad_lists_are_refused(body: dict[str, Any], subject: str, words: str) -> None:
    with pytest.raises(AccessError, match=words):
        AccessList.from_json(body, subject)


def test_the_number_of_entries_is_bounded() -> None:
    def of(count: int, begin: str) -> AccessList:
        rows = [
            {"resource": f"Topic:{begin}{number}", "actions": ["Pub"], "decision": "Allow"}
            for number in range(count)
        ]
        return AccessList.from_json({"policies": [{"entries": rows}]}, "User:test")

    most = of(ENTRIES_MAX, "a")
    with pytest.raises(AccessError, match="at most 1000"):
        most.updated(of(1, "b"))
    with pytest.raises(AccessError, match="at most 1000"):
        of(ENTRIES_MAX + 1, "a")
