"""Checks the checker: rules of the core are broken on purpose, and some seed must notice.

A mutant that survives means that the simulation no longer reaches what it once reached.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from dledger.core import leadership, node
from dledger.core.config import Config
from dledger.core.dispatcher import EntryDispatcher
from dledger.core.election import Voter, can_grant_vote
from dledger.core.handler import EntryHandler
from dledger.core.messages import (
    AppendRequest,
    AppendResponse,
    CompareResponse,
    Message,
    PeerResponse,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from dledger.core.node import Node
from dledger.core.output import Envelope, Output
from dledger.core.quorum import quorum_index
from dledger.core.types import NO_INDEX, NO_TERM, HardState, Impairment
from tests.simulation import test_scenarios_replication as scenarios
from tests.simulation.surroundings import NodeFactory, SeededRng, make_node
from tests.simulation.world import run_seed
from tests.support.memory_log import MemoryLog

SEEDS_MAX = 120


def factory_of(kind: type[Node]) -> NodeFactory:
    def make(
        config: Config,
        hard_state: HardState,
        store: MemoryLog,
        rng: SeededRng,
        now_ms: int,
        impairment: Impairment | None,
    ) -> Node:
        return kind(config, hard_state, store.log_state(), store, rng, now_ms, impairment)

    return make


def find_failure(factory: NodeFactory, seeds: Iterable[int]) -> tuple[int, str] | None:
    for seed in seeds:
        try:
            run_seed(seed, factory=factory)
        except Exception as error:  # noqa: BLE001 (a mutant may break in any way)
            return seed, f"{type(error).__name__}: {error}"
    return None


def assert_killed(factory: NodeFactory = make_node, first: int = 0) -> None:
    """Some seed from `first` on must fail; where it needs a rare schedule, `first` saves the way there."""
    failure = find_failure(factory, range(first, first + SEEDS_MAX))
    assert failure is not None, f"none of {SEEDS_MAX} seeds noticed"


# ---- promises given before the disk has kept them


class HastyNode(Node):
    """Sends messages of some kinds without waiting for the disk."""

    kinds: tuple[type[Message], ...] = ()

    def take_output(self, now_ms: int) -> Output:
        output = super().take_output(now_ms)
        after = output.send_after_persist
        return replace(
            output,
            send_now=output.send_now + tuple(e for e in after if self._is_hasty(e)),
            send_after_persist=tuple(e for e in after if not self._is_hasty(e)),
        )

    def _is_hasty(self, envelope: Envelope) -> bool:
        return isinstance(envelope.message, self.kinds)


class HastyAcknowledger(HastyNode):
    kinds = (AppendResponse,)


class HastyVoter(HastyNode):
    kinds = (VoteResponse,)


class HastyComparer(HastyNode):
    kinds = (CompareResponse,)


class SelfCounter(Node):
    """A leader counts its own entries before its disk has them."""

    def take_output(self, now_ms: int) -> Output:
        self.persisted(self.end_index, self.end_term, now_ms)
        return super().take_output(now_ms)


class Flatterer(Node):
    """A leader acknowledges what it has only appended."""

    def take_output(self, now_ms: int) -> Output:
        output = super().take_output(now_ms)
        if self._leadership is None:
            return output
        early = tuple(self._leadership.appends.ack(self.end_index))
        return replace(output, completions=output.completions + early)


@pytest.mark.parametrize(
    ("kind", "first"),
    [(HastyAcknowledger, 0), (HastyVoter, 65), (HastyComparer, 0), (SelfCounter, 0), (Flatterer, 0)],
)
def test_promise_before_the_disk_is_noticed(kind: type[Node], first: int) -> None:
    assert_killed(factory_of(kind), first)


# ---- memory lost over a restart


def test_vote_forgotten_over_a_restart_is_noticed() -> None:
    def make(
        config: Config,
        hard_state: HardState,
        store: MemoryLog,
        rng: SeededRng,
        now_ms: int,
        impairment: Impairment | None,
    ) -> Node:
        return make_node(config, HardState(hard_state.term, None), store, rng, now_ms, impairment)

    assert_killed(make, first=20)


def test_log_cut_at_the_high_watermark_over_a_restart_is_noticed() -> None:
    """What Kafka did before leader epochs: entries above the high watermark are dropped at every start."""

    def make(
        config: Config,
        hard_state: HardState,
        store: MemoryLog,
        rng: SeededRng,
        now_ms: int,
        impairment: Impairment | None,
    ) -> Node:
        keep_index = max(store.log_state().commit_index, store.begin_index)
        if keep_index < store.end_index:
            store.truncate_from(keep_index + 1)
        return make_node(config, hard_state, store, rng, now_ms, impairment)

    assert_killed(make)


# ---- rules of the core left out


def test_commit_by_counting_entries_of_old_terms_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def count_all(marks: Iterable[int], quorum: int, _term_start_index: int, commit_index: int) -> int:
        return max(commit_index, quorum_index(marks, quorum))

    monkeypatch.setattr(leadership, "committable_index", count_all)
    assert_killed()


def patch_voter(monkeypatch: pytest.MonkeyPatch, blind: Callable[[Voter], Voter]) -> None:
    def grant(request: VoteRequest, candidate: str, voter: Voter) -> VoteResult:
        return can_grant_vote(request, candidate, blind(voter))

    monkeypatch.setattr(node, "can_grant_vote", grant)


def test_vote_for_a_log_that_is_behind_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    patch_voter(monkeypatch, lambda voter: replace(voter, last_index=NO_INDEX, last_term=NO_TERM))
    assert_killed()


def test_second_vote_in_a_term_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    patch_voter(monkeypatch, lambda voter: replace(voter, voted_for=None))
    assert_killed()


def test_compare_of_ends_without_terms_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader takes a follower's log for a prefix of its own because it is not longer."""

    def is_prefix(self: EntryDispatcher, response: CompareResponse) -> bool:
        return response.end_index <= self._log.end_index

    monkeypatch.setattr(EntryDispatcher, "_is_prefix", is_prefix)
    assert_killed()


def test_commit_beyond_what_is_known_to_be_the_leaders_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def follow(self: Node, leader_commit_index: int) -> None:
        self.commit_index = max(self.commit_index, min(leader_commit_index, self.end_index))

    monkeypatch.setattr(Node, "_follow_commit", follow)
    assert_killed()


def test_truncation_below_the_commit_index_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that truncates too much, and followers that obey."""
    truncate_peer, on_push = EntryDispatcher._truncate_peer, EntryHandler.on_push

    def truncate_much(
        self: EntryDispatcher, index: int, is_reset: bool, answer: CompareResponse, reason: str
    ) -> None:
        truncate_peer(self, max(0, index - 1, self._log.begin_index), is_reset, answer, reason)

    def obey(self: EntryHandler, leader: str, request: AppendRequest, _commit: int, now_ms: int) -> None:
        on_push(self, leader, request, NO_INDEX, now_ms)

    monkeypatch.setattr(EntryDispatcher, "_truncate_peer", truncate_much)
    monkeypatch.setattr(EntryHandler, "on_push", obey)
    assert_killed()


def test_push_never_repeated_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EntryDispatcher, "_push_again", lambda *_: None)
    assert_killed()


# ---- second lines of defence: COMPARE lets no ordinary schedule reach them, so scripts do


def append_unchecked(handler: EntryHandler, request: AppendRequest) -> bool:
    return request.entries.term >= handler._log.last_term


def answer_unchecked(self: Node, sender: str, response: PeerResponse) -> None:
    if self._leadership is not None:
        self._leadership.on_response(sender, response, self._now_ms)
        self._count_watermarks()


@pytest.mark.parametrize(
    ("owner", "name", "mutant", "scenario"),
    [
        (
            EntryHandler,
            "_continues",
            append_unchecked,
            scenarios.test_push_after_an_entry_the_follower_does_not_have_is_refused,
        ),
        (
            EntryHandler,
            "_is_equal",
            lambda *_: True,
            scenarios.test_push_of_other_entries_than_the_follower_has_is_refused,
        ),
        (
            Node,
            "_on_response",
            answer_unchecked,
            scenarios.test_answer_of_an_older_term_is_not_counted,
        ),
    ],
)
def test_check_left_out_fails_its_scenario(
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    mutant: Callable[..., object],
    scenario: Callable[[], None],
) -> None:
    monkeypatch.setattr(owner, name, mutant)
    with pytest.raises(AssertionError):
        scenario()
