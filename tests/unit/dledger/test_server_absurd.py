"""Nothing that a peer sends stops a node: well-typed messages with any numbers, to the driver on the real
entry store. (`tests/fuzz/test_dledger_fuzz.py` looks at the core alone, and at small numbers.)
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commitlog.entry import encode_entries
from commitlog.entry_files import EntryStoreConfig
from commitlog.entry_store import EntryStore, open_entry_store
from dledger.codec import INTEGER_MAX, PeerProtocolError
from dledger.core.config import Config
from dledger.core.membership import Configuration, ConfigurationEntry, Member
from dledger.core.messages import (
    AppendRequest,
    AppendResponse,
    CommitRequest,
    CompareRequest,
    CompareResponse,
    FetchRequest,
    FetchResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    MembershipNotice,
    Message,
    RepairRequest,
    RepairResponse,
    TakeLeadershipRequest,
    TruncateRequest,
    TruncateResponse,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from dledger.core.types import EntryRange, HardState, ResponseCode
from dledger.durable_state import HardStateFile
from dledger.environment import Environment
from dledger.server import DLedgerServer
from dledger.writer import Durability
from tests.support.long_runs import examples
from tests.support.memory_fs import MemoryFs
from tests.unit.dledger.test_server_faults import Witness

FILE_BYTES = 4096
CONFIG = EntryStoreConfig(data_file_bytes=FILE_BYTES, index_file_bytes=1024)
near = st.integers(-1, 6)
far = st.sampled_from(
    [(1 << bits) + more for bits in (31, 32, 53, 62) for more in (-1, 0, 1)] + [INTEGER_MAX - 1, INTEGER_MAX]
)
numbers = near | far
codes = st.sampled_from(ResponseCode)


def entries_of(bodies: list[bytes], first_index: int, term: int, position: int) -> EntryRange:
    data, _, _ = encode_entries(bodies, first_index, term, position, None)
    return EntryRange(first_index, first_index + len(bodies) - 1, term, data)


@st.composite
def entry_ranges(draw: st.DrawFn) -> EntryRange:
    """Entries whose bytes bear out all that is said of them; mostly they would come next."""
    first_index = draw(near | numbers.filter(lambda number: number >= 0))
    first_index = max(0, first_index)
    term = max(0, draw(numbers))
    position = max(0, draw(st.sampled_from([0, 0, 49, 50, 100, 4096]) | numbers))
    some = st.sampled_from([b"", b"a", b"bc", bytes(3000), bytes(5000)])
    bodies = draw(st.lists(some, min_size=1, max_size=3))
    size = sum(48 + len(body) for body in bodies)
    if first_index + len(bodies) - 1 > INTEGER_MAX or position + size > INTEGER_MAX:
        return EntryRange(first_index, first_index, term, b"not an entry")
    return entries_of(bodies, first_index, term, position)


whole = numbers.map(lambda number: max(0, number))
members = st.sets(st.sampled_from(["n0", "n1", "n2", "n7"]), min_size=1)
configurations = st.builds(
    ConfigurationEntry,
    numbers,
    whole,
    st.builds(
        lambda ids, level, generation: Configuration(
            tuple(Member(each, "127.0.0.1", 1) for each in ids), level, generation
        ),
        *(members, whole, whole),
    ),
)

messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(VoteRequest, numbers, numbers, numbers, numbers, st.booleans(), st.booleans()),
    st.builds(VoteResponse, numbers, numbers, st.booleans(), st.sampled_from(VoteResult)),
    st.builds(HeartbeatRequest, numbers, numbers),
    st.builds(HeartbeatResponse, numbers, numbers, st.booleans()),
    st.builds(CommitRequest, numbers, numbers),
    st.builds(AppendRequest, numbers, numbers, numbers, entry_ranges()),
    st.builds(AppendRequest, st.just(1), numbers, st.sampled_from([-1, 0, 1]), entry_ranges()),
    st.builds(AppendResponse, numbers, codes, numbers, numbers, numbers),
    st.builds(CompareRequest, numbers, numbers, numbers, numbers),
    st.builds(CompareResponse, numbers, codes, numbers, numbers, numbers, numbers, numbers, numbers),
    st.builds(TruncateRequest, numbers, numbers, numbers, numbers, numbers, st.booleans(), numbers, numbers),
    st.builds(TruncateRequest, st.just(1), near, numbers, near, numbers, st.just(True), near, near),
    st.builds(MembershipNotice, numbers, configurations),
    st.builds(TruncateRequest, *(numbers,) * 5, st.booleans(), numbers, numbers, configurations),
    st.builds(TruncateResponse, numbers, codes, numbers, numbers),
    st.builds(TakeLeadershipRequest, numbers, numbers),
    st.builds(RepairRequest, numbers, numbers),
    st.builds(RepairResponse, numbers, numbers, st.booleans(), numbers),
    st.builds(FetchRequest, numbers, numbers, numbers),
    st.builds(FetchResponse, numbers, codes, st.none() | entry_ranges()),
)


class Node:
    """A follower on a file system in memory, driven turn by turn."""

    def __init__(self, is_impaired: bool) -> None:
        fs = MemoryFs()
        folder = Path("/state")
        fs.make_directory(folder)
        if not is_impaired:
            HardStateFile(folder, fs).save(HardState(0, None))
        self.store: EntryStore = open_entry_store(Path("/log"), CONFIG, fs=fs)
        self.witness = Witness()
        self.now_ms = 0
        ids = ("n0", "n1", "n2")
        self.server = DLedgerServer(
            Config(group="g", self_id="n0", peers=ids),
            listen=("127.0.0.1", 0),
            peers=dict.fromkeys(ids, ("127.0.0.1", 1)),
            store=self.store,
            state_dir=folder,
            term_start_body=lambda term: b"term %d" % term,
            durability=Durability.PERSISTED,
            client_address="",
            environment=Environment(fs, lambda: self.now_ms),
        )
        self.server.set_observer(self.witness)

    async def receive(self, sender: str, some: list[Message]) -> None:
        """One turn with these messages, and what follows from it."""
        try:
            self.server.on_messages(sender, some)
        except PeerProtocolError:
            return  # the connection that they came from is closed
        for _ in range(4):
            await asyncio.sleep(0)
            while self.server._writer.is_busy:
                await asyncio.sleep(0)

    async def win_an_election(self) -> None:
        """If it may campaign."""
        self.now_ms += 60_000
        await self.receive("n1", [])
        for is_pre_vote in (True, False):
            term = self.server.term
            answer = VoteResponse(term, term + is_pre_vote, is_pre_vote, VoteResult.ACCEPT)
            await self.receive("n1", [answer])


async def run(groups: list[tuple[str, list[Message]]], is_impaired: bool = False) -> list[BaseException]:
    """What stopped the node. A group without messages stands for an election that it wins."""
    node = Node(is_impaired)
    server: Any = node.server
    server._is_running = True
    for sender, some in groups:
        if some:
            await node.receive(sender, some)
        else:
            await node.win_an_election()
    await server.stop()
    return node.witness.fatal


@settings(max_examples=examples(300), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    groups=st.lists(st.tuples(st.sampled_from(["n1", "n2"]), st.lists(messages, max_size=4)), max_size=8),
    is_impaired=st.booleans(),
)
def test_no_messages_stop_a_node(groups: list[tuple[str, list[Message]]], is_impaired: bool) -> None:
    assert asyncio.run(run(groups, is_impaired)) == []


def push(entries: EntryRange, prev_term: int = 0, commit_index: int = -1) -> AppendRequest:
    return AppendRequest(1, commit_index, prev_term, entries)


def reset_to(index: int, position: int) -> TruncateRequest:
    """Of a log that is empty."""
    return TruncateRequest(1, -1, index, 0, position, True, -1, 0)


@pytest.mark.parametrize("is_one_turn", [True, False])
@pytest.mark.parametrize(
    "some",
    [
        pytest.param([push(entries_of([b"a"], 0, 1, 49))], id="stands elsewhere"),
        pytest.param([push(entries_of([bytes(5000)], 0, 1, 0))], id="larger than a file"),
        pytest.param([push(entries_of([bytes(3000)] * 2, 0, 1, 0))], id="over the end of a file"),
        pytest.param(
            [push(entries_of([b"a"], 1, 1, 60), 1), push(entries_of([b"a"], 0, 1, 0))],
            id="came early and stands elsewhere",
        ),
        pytest.param([push(EntryRange(0, 0, 1, b"short"))], id="no entry"),
        pytest.param([reset_to(0, -1)], id="begins before the first byte"),
        pytest.param([reset_to(-1, -1)], id="begins before the first entry"),
        pytest.param(
            [reset_to(5, INTEGER_MAX - 10), push(entries_of([b"a"], 5, 1, INTEGER_MAX - 60))],
            id="begins at the end of numbers",
        ),
        pytest.param(
            [reset_to(INTEGER_MAX, 0), push(entries_of([b"a"], INTEGER_MAX, 1, 0))],
            id="begins with the last index",
        ),
        pytest.param(
            [HeartbeatRequest(INTEGER_MAX, INTEGER_MAX), TakeLeadershipRequest(INTEGER_MAX, 0)],
            id="the last term",
        ),
    ],
)
def test_an_absurd_message_does_not_stop_a_node(some: list[Message], is_one_turn: bool) -> None:
    groups = [("n1", some)] if is_one_turn else [("n1", [message]) for message in some]
    assert asyncio.run(run([*groups, ("n1", [])])) == []


async def follow(some: list[Message]) -> int:
    node = Node(is_impaired=False)
    node.server._is_running = True
    for message in some:
        await node.receive("n1", [message])
    await node.server.stop()
    return node.store.end_index


def test_a_push_that_fits_is_taken_after_one_that_did_not() -> None:
    good, bad = entries_of([b"a"], 0, 1, 0), entries_of([b"a"], 0, 1, 7)
    assert asyncio.run(follow([push(bad)])) == -1
    assert asyncio.run(follow([push(bad), push(good), push(entries_of([b"b"], 1, 1, 49), 1)])) == 1
