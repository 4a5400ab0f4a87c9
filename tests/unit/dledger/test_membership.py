"""Configurations as values, and the history of those of a log."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from dledger.core.membership import (
    MEMBERS_MAX,
    VOTERS_MAX,
    Configuration,
    ConfigurationEntry,
    ConfigurationError,
    ConfigurationHistory,
    ConfigurationLog,
    Member,
    MemberRole,
    decode_configuration,
    encode_configuration,
    first_configuration,
    voters_changed,
)
from dledger.core.types import UNKNOWN_TERM

THREE = Configuration.of_voters(("n0", "n1", "n2"), 3)
N3 = Member("n3", "10.0.0.3", 7, MemberRole.JOINING, "n1")


def at(index: int, term: int, configuration: Configuration) -> ConfigurationEntry:
    return ConfigurationEntry(index, term, configuration)


def terms(*known: tuple[int, int]) -> Callable[[int], int]:
    return lambda index: dict(known).get(index, UNKNOWN_TERM)


@pytest.mark.parametrize(("voters", "quorum"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_quorum_is_a_majority_of_the_voters(voters: int, quorum: int) -> None:
    configuration = Configuration.of_voters(f"n{number}" for number in range(voters))
    assert configuration.with_member(Member("x", "", 0, MemberRole.LEARNER)).quorum == quorum


def test_json_gives_the_same_configuration() -> None:
    configuration = replace(THREE.with_member(N3), generation=4)
    assert decode_configuration(encode_configuration(configuration)) == configuration


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"version":2}',
        encode_configuration(THREE).replace(b'"voter"', b'"king"', 1),
        encode_configuration(THREE).replace(b'"port":0', b'"port":"a"', 1),
        encode_configuration(THREE).replace(b"n1", b"n0"),
        b"{" * 10_000,
        b" " * 100_000,
    ],
    ids=range(8),
)
def test_other_bytes_are_no_configuration(content: bytes) -> None:
    with pytest.raises(ConfigurationError):
        decode_configuration(content)


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ((), "at least one voter"),
        ((Member("n0", "", 0, MemberRole.LEARNER),), "at least one voter"),
        ((Member("n0", "", 0), Member("n0", "", 0)), "named twice"),
        ((Member("n0", "", 70_000),), "port 70000"),
        ((Member("", "", 0),), "member ''"),
        (tuple(Member(f"n{number}", "", 0) for number in range(VOTERS_MAX + 1)), "at most"),
        (
            (
                Member("n0", "", 0),
                *(Member(f"l{number}", "", 0, MemberRole.LEARNER) for number in range(MEMBERS_MAX)),
            ),
            "at most",
        ),
    ],
)
def test_members_that_no_group_can_have(members: tuple[Member, ...], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Configuration(members)


def test_a_member_that_goes_is_replaced_by_none() -> None:
    assert THREE.with_member(N3).without("n1").member("n3") == replace(N3, replaces=None)
    assert voters_changed(THREE, THREE.with_member(N3)) == frozenset()
    assert voters_changed(THREE, THREE.without("n1")) == {"n1"}


def test_a_log_finds_its_configurations_again() -> None:
    two, four = THREE.without("n2"), THREE.with_member(N3)
    history = ConfigurationHistory(
        (*first_configuration(THREE), at(3, 1, four), at(7, 2, two)), dropped=(at(5, 1, two),)
    )
    # A crash came between the file and the log: entry 7 of term 2 never reached the disk, and entry 5, which
    # it was to replace, is still there.
    assert history.recovered(0, terms((3, 1), (5, 1))) == (
        *first_configuration(THREE),
        at(3, 1, four),
        at(5, 1, two),
    )
    assert history.recovered(0, terms((3, 1), (5, 2), (7, 2))) == history.entries
    # Retention removed entry 3: its configuration is in force before the log's begin.
    assert history.recovered(5, terms((5, 2), (7, 2))) == (at(3, 1, four), at(7, 2, two))


def test_a_log_that_was_to_be_reset_finds_its_old_configurations() -> None:
    log = ConfigurationLog("n0", (*first_configuration(THREE), at(3, 1, THREE.with_member(N3))))
    old = log.history
    log.reset(at(90, 4, THREE.without("n2")))
    history = log.history
    assert old is not None
    assert history is not None
    assert history.recovered(0, terms((3, 1))) == old.entries
    assert history.recovered(91, terms()) == (at(90, 4, THREE.without("n2")),)


def test_a_log_knows_what_is_in_force_and_what_is_left_to_do() -> None:
    changes: list[str] = []
    log = ConfigurationLog("n2", first_configuration(THREE), lambda: changes.append(""))
    assert (log.is_voter, log.has_steps, log.history, log.others) == (True, False, None, ("n0", "n1"))
    log.append(at(4, 1, THREE.with_member(N3)))
    assert (log.has_steps, log.at(3).index, log.at(4).index) == (True, -1, 4)
    log.append(at(9, 2, THREE.without("n2")))
    assert (log.is_voter, log.may_lead(8), log.may_lead(9)) == (False, True, False)
    log.truncate_from(10)
    assert len(changes) == 2
    log.truncate_from(9)
    assert (log.is_voter, log.latest.index, len(changes)) == (True, 4, 3)
    log.truncate_before(6)
    log.check_invariants(8)
    assert log.at(0).index == 4
