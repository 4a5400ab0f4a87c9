"""What an operator may decide with the store of one stopped node, on files in memory."""

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from broker.config import BrokerConfig
from broker.store.message_log import StoreLock, StoreLockedError, engine_config, entry_config
from broker.store.recovery import (
    JOURNAL_NAME,
    TERM_STEP,
    Plan,
    RecoveryError,
    Remains,
    StoppedStore,
    found_node_id,
    plan_decision,
    stopped_store,
)
from commitlog.dledger_commit_log import store_directory
from commitlog.entry import write_physical_offset
from commitlog.entry_store import open_entry_store
from commitlog.record import Message, encode_record
from dledger.core.membership import Configuration, Member
from dledger.core.types import HardState, Role
from dledger.durable_state import DurableState, HardStateFile, ImpairmentFile
from dledger.environment import Environment
from dledger.server import first_members, recovered_node
from tests.support.log_entries import write_all
from tests.support.memory_fs import MemoryFs, PowerLossError

STORE = Path("/n0")
PEERS = "n0-127.0.0.1:10914;n1-127.0.0.1:10924;n2-127.0.0.1:10934"
BY = {"by": "ann@host"}


def config_of(node_id: str = "n0") -> BrokerConfig:
    return BrokerConfig.model_validate(
        {
            "enableDLegerCommitLog": True,
            "dLegerPeers": PEERS,
            "dLegerSelfId": node_id,
            "brokerName": "g",
            "mappedFileSizeCommitLog": 8 * 1024 * 1024,
            "mappedFileSizeForEntryIndex": 4096,
        }
    )


def filled(
    fs: MemoryFs,
    store: Path = STORE,
    node_id: str = "n0",
    *,
    count: int = 5,
    term: int = 3,
    committed: int = 2,
) -> MemoryFs:
    """The store of a node that was stopped."""
    fs.make_directory(store)
    directory = store_directory(store, node_id)
    entries = open_entry_store(directory, entry_config(config_of()), write_physical_offset, fs)
    bodies = [encode_record(Message("t", 0, b"body"), 0, 1_000 + each) for each in range(count)]
    if bodies:
        entries.append_bodies(0, term, bodies)
        write_all(entries)
    entries.save_checkpoint(count - 1, committed)
    entries.close()
    HardStateFile(directory, fs).save(HardState(term + 1, "n1"))
    return fs


def environment(fs: MemoryFs) -> Environment:
    return Environment(fs=fs, wall_clock_ms=lambda: 5_000, rng=random.Random(1))


@contextmanager
def opened(fs: MemoryFs, store: Path = STORE) -> Iterator[StoppedStore]:
    with stopped_store(config_of(), store, environment(fs)) as found:
        yield found


def remains_of(fs: MemoryFs, store: Path = STORE) -> Remains:
    with opened(fs, store) as found:
        return found.remains


def planned(own: Remains, others: Sequence[Remains] = (), *, trusted: bool = False) -> Plan:
    return plan_decision(config_of(), own, others, is_impaired_trusted=trusted)


def decide(fs: MemoryFs, *, trusted: bool = False) -> Plan:
    with opened(fs) as found:
        plan = planned(found.remains, trusted=trusted)
        found.decide(plan, BY)
    return plan


def journal(fs: MemoryFs) -> list[str]:
    return [json.loads(line)["event"] for line in fs.content(STORE / JOURNAL_NAME).splitlines()]


# -- what is left


def test_what_a_stopped_node_has() -> None:
    found = remains_of(filled(MemoryFs()))
    assert (found.node_id, found.begin_index, found.end_index, found.end_term) == ("n0", 0, 4, 3)
    assert (found.commit_index, found.last_stored_ms, found.term, found.voted_for) == (2, 1_004, 4, "n1")
    assert (found.newest.index, found.newest.configuration.voters) == (-1, ("n0", "n1", "n2"))
    assert found.impairment is None


def test_to_look_changes_nothing() -> None:
    fs = filled(MemoryFs())
    remains_of(fs)  # makes the lock file
    before = {path: fs.content(path) for path in fs.paths()}
    remains_of(fs)
    assert {path: fs.content(path) for path in fs.paths()} == before


def test_a_node_that_runs_is_not_touched() -> None:
    fs = filled(MemoryFs())
    lock = StoreLock(STORE, fs)
    with pytest.raises(StoreLockedError, match="another process uses the store"):
        remains_of(fs)
    lock.release()


def test_a_folder_that_is_no_store() -> None:
    fs = MemoryFs()
    fs.make_directory(Path("/else"))
    with pytest.raises(RecoveryError, match="/else is the store of no node"):
        found_node_id(Path("/else"), fs)
    assert fs.paths() == []


def test_a_lost_vote_is_seen_and_not_marked() -> None:
    fs = filled(MemoryFs())
    fs.remove(store_directory(STORE, "n0") / "currterm")
    found = remains_of(fs)
    assert found.impairment is not None
    assert found.impairment.reason == "there is no vote file"
    assert ImpairmentFile(fs, store_directory(STORE, "n0"), environment(fs)).load() is None


# -- what may be decided


def test_the_plan_says_what_may_be_lost() -> None:
    plan = planned(remains_of(filled(MemoryFs())))
    assert (plan.confirmation, plan.term, plan.index) == ("g/4/3", 4 + TERM_STEP, 5)
    assert plan.configuration == Configuration((Member("n0", "127.0.0.1", 10914),), 3, 1)
    assert plan.lost == (
        "Every entry after 4 is lost: acknowledged messages that only the gone members have. How many is not "
        "known.",
        "Everything up to entry 4 is kept, of which 2 is known to be committed.",
        "The 2 entries after 2 are not known here to be committed, and will be: they are kept, and a client "
        "may have seen its send fail. If the gone members have others in their place, those are lost.",
    )
    assert "n1, n2 must never start again with their old files" in plan.warnings[0]


def test_a_node_with_less_is_refused() -> None:
    fs = filled(filled(MemoryFs()), Path("/n1"), "n1", count=6)
    own, other = remains_of(fs), remains_of(fs, Path("/n1"))
    with pytest.raises(RecoveryError, match="n1 has the more complete log"):
        planned(own, [other])
    assert planned(other, [own]).index == 6


def test_a_later_term_is_more_than_a_longer_log() -> None:
    fs = filled(filled(MemoryFs()), Path("/n1"), "n1", count=2, term=4)
    own, other = remains_of(fs), remains_of(fs, Path("/n1"))
    with pytest.raises(RecoveryError, match="n1 has the more complete log"):
        planned(own, [other])


def test_the_term_is_above_that_of_every_store() -> None:
    fs = filled(filled(MemoryFs()), Path("/n1"), "n1", count=2)
    HardStateFile(store_directory(Path("/n1"), "n1"), fs).save(HardState(70, None))
    assert planned(remains_of(fs), [remains_of(fs, Path("/n1"))]).term == 70 + TERM_STEP


def test_the_generation_is_above_one_that_the_log_does_not_name_yet() -> None:
    """The node was being filled up when its new group was lost, too."""
    fs = filled(MemoryFs())
    vote = HardStateFile(store_directory(STORE, "n0"), fs)
    vote.save(replace(vote.load(), generation=1))
    assert remains_of(fs).generation == 1
    assert decide(fs).configuration.generation == 2
    assert (remains_of(fs).generation, vote.load().generation) == (2, 1)


def test_an_empty_log_is_refused() -> None:
    with pytest.raises(RecoveryError, match="The log of n0 is empty"):
        planned(remains_of(filled(MemoryFs(), count=0, committed=-1)), trusted=True)


def test_an_impaired_node_needs_trust() -> None:
    fs = filled(MemoryFs())
    ImpairmentFile(fs, store_directory(STORE, "n0"), environment(fs)).mark("a sector", is_vote_lost=False)
    own = remains_of(fs)
    with pytest.raises(RecoveryError, match=r"\(a sector\).* add --trust-impaired"):
        planned(own)
    assert any("a sector" in line for line in planned(own, trusted=True).warnings)


def test_a_node_without_a_vote_is_warned_of() -> None:
    own = remains_of(filled(MemoryFs()))
    (first,) = own.configurations
    others = first.configuration.without("n0")
    plan = planned(replace(own, configurations=(replace(first, configuration=others),)))
    assert "n0 has no vote" in plan.warnings[0]


# -- the decision


def started_role(fs: MemoryFs) -> Role:
    """Of the node that finds these files, after its first time-out."""
    config, directory = config_of(), store_directory(STORE, "n0")
    entries = open_entry_store(directory, entry_config(config), write_physical_offset, fs)
    first = first_members("n0", {p.id: (p.host, p.port) for p in config.peers}, is_joining=False)
    engine, own = engine_config(config), environment(fs)
    node = recovered_node(engine, entries, DurableState(engine, directory, own, first), own, first)
    entries.close()
    node.tick(node.deadline_ms())
    return node.role


def test_the_node_leads_alone() -> None:
    fs = filled(MemoryFs())
    assert started_role(fs) is Role.CANDIDATE
    plan = decide(fs)
    after = remains_of(fs)
    assert (after.end_index, after.end_term, after.term, after.voted_for) == (5, plan.term, plan.term, "n0")
    assert (after.newest.index, after.newest.configuration) == (5, plan.configuration)
    assert after.commit_index == 2, "nothing is committed by the decision before the node leads"
    assert started_role(fs) is Role.LEADER
    assert journal(fs) == ["begun", "decided"]


def test_the_log_says_who_decided() -> None:
    fs = filled(MemoryFs())
    decide(fs)
    content = b"".join(fs.content(path) for path in fs.paths() if "data" in path.parts)
    assert b'"by": "ann@host"' in content
    assert b"Every entry after 4 is lost" in content


def test_a_line_that_a_crash_cut_spoils_no_other() -> None:
    fs = filled(MemoryFs())
    fs.plant(STORE / JOURNAL_NAME, b'{"event": "beg')
    decide(fs)
    cut, *whole = fs.content(STORE / JOURNAL_NAME).splitlines()
    assert (cut, [json.loads(line)["event"] for line in whole]) == (b'{"event": "beg', ["begun", "decided"])
    assert json.loads(whole[0]).keys() == {"event", "atMs", "index", "term", "lost", "by"}


def test_a_second_decision_is_refused() -> None:
    fs = filled(MemoryFs())
    decide(fs)
    with pytest.raises(RecoveryError, match=r"n0 is the only voter already \(generation 1\)"):
        decide(fs)


@pytest.mark.parametrize("is_lost", [False, True], ids=["marked", "vote lost"])
def test_an_impaired_node_is_healed_by_the_decision(is_lost: bool) -> None:
    fs = filled(MemoryFs())
    directory = store_directory(STORE, "n0")
    if is_lost:
        fs.remove(directory / "currterm")
    else:
        ImpairmentFile(fs, directory, environment(fs)).mark("a sector", is_vote_lost=False)
    decide(fs, trusted=True)
    assert remains_of(fs).impairment is None
    assert started_role(fs) is Role.LEADER


@pytest.mark.parametrize("is_lost", [False, True], ids=["sound", "vote lost"])
def test_a_crash_leaves_the_old_members_or_the_decision(is_lost: bool) -> None:
    """After a power failure before each change of a file, the node votes as before or leads alone; one whose
    promises were in doubt is never sound without the decision. A second decision then works.
    """
    outcomes = set()
    for changes in range(1_000):
        fs = filled(MemoryFs())
        if is_lost:
            fs.remove(store_directory(STORE, "n0") / "currterm")
        remains_of(fs)
        try:
            with fs.stopping_after(changes):
                decide(fs, trusted=True)
        except PowerLossError:
            pass
        else:
            break
        after = fs.crash(random.Random(changes))
        found = remains_of(after)
        outcomes.add(found.is_alone)
        is_begun = STORE / JOURNAL_NAME in after.paths() and journal(after)[:1] == ["begun"]
        assert is_begun or found.term <= 4, "who decides is durable before anything of it"
        assert found.end_index == 4 + found.is_alone
        assert found.newest.configuration.generation == found.is_alone
        assert found.is_alone or (found.impairment is not None) == is_lost
        if not found.is_alone or found.impairment is not None:
            decide(after, trusted=True)
        assert started_role(after) is Role.LEADER
        assert remains_of(after).impairment is None
        assert journal(after)[-1] == "decided" or found.is_alone
    assert outcomes == {False, True}
