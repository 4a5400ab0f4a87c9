"""dledger.durable_state: which promises a node still knows when it starts."""

import errno
import random
from pathlib import Path

import pytest

from dledger.core.config import Config
from dledger.core.membership import Configuration, ConfigurationEntry, ConfigurationHistory
from dledger.core.types import Epoch, HardState, Impairment, LogState
from dledger.durable_state import CorruptHardStateError, DurableState, HardStateFile, ImpairmentFile
from dledger.environment import Environment
from tests.support.memory_fs import MemoryFs

FOLDER = Path("/store")
EMPTY = LogState(0, -1, (), -1)
LOG = LogState(0, 9, (Epoch(1, 0), Epoch(4, 5)), 7)
GROUP = Config("g", "n0", ("n0", "n1", "n2"))
ALONE = Config("g", "n0", ("n0",))


@pytest.fixture
def environment() -> Environment:
    fs = MemoryFs()
    fs.make_directory(FOLDER)
    return Environment(fs=fs, rng=random.Random(1))


def mark_of(environment: Environment) -> ImpairmentFile:
    return ImpairmentFile(environment.fs, FOLDER, environment)


def load(
    environment: Environment, log: LogState, config: Config = GROUP
) -> tuple[HardState, Impairment | None]:
    return DurableState(config, FOLDER, environment).load(log)


def write(environment: Environment, name: str, content: bytes) -> None:
    fs = environment.fs
    fd = fs.open(FOLDER / name)
    fs.set_size(fd, 0)
    fs.pwrite(fd, [content], 0)
    fs.close(fd)


def read(environment: Environment, name: str) -> bytes:
    fs = environment.fs
    fd = fs.open(FOLDER / name)
    content = fs.pread(fd, fs.size(fd), 0)
    fs.close(fd)
    return content


# ---- the mark


def test_there_is_no_mark_at_first(environment: Environment) -> None:
    assert mark_of(environment).load() is None


def test_mark_is_found_again_until_it_is_removed(environment: Environment) -> None:
    made = mark_of(environment).mark("a reason, “quoted”", is_vote_lost=False)
    assert (made.is_vote_lost, made.reason) == (False, "a reason, “quoted”")
    assert mark_of(environment).load() == made
    mark_of(environment).remove()
    assert mark_of(environment).load() is None
    mark_of(environment).remove()


def test_mark_survives_a_power_failure_and_so_does_its_end(environment: Environment) -> None:
    assert isinstance(environment.fs, MemoryFs)
    made = mark_of(environment).mark("lost", is_vote_lost=True)
    crashed = environment.fs.crash(random.Random(1))
    assert ImpairmentFile(crashed, FOLDER, environment).load() == made
    ImpairmentFile(crashed, FOLDER, environment).remove()
    assert ImpairmentFile(crashed.crash(random.Random(1)), FOLDER, environment).load() is None


def test_second_mark_has_a_new_id_and_forgets_no_loss(environment: Environment) -> None:
    first = mark_of(environment).mark("the vote", is_vote_lost=True)
    second = mark_of(environment).mark("the log", is_vote_lost=False)
    assert second.repair_id != first.repair_id
    assert (second.is_vote_lost, second.reason) == (True, "the log")


def test_mark_with_any_byte_changed_says_that_all_may_be_lost(environment: Environment) -> None:
    mark_of(environment).mark("the log", is_vote_lost=False)
    content = read(environment, "impaired")
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1
        write(environment, "impaired", bytes(changed))
        found = mark_of(environment).load()
        assert found is not None, place
        assert found.is_vote_lost, place


# ---- what a start finds


def test_vote_without_a_mark_is_sound(environment: Environment) -> None:
    HardStateFile(FOLDER, environment.fs).save(HardState(4, "n1"))
    assert load(environment, LOG) == (HardState(4, "n1"), None)


def test_mark_beside_a_vote_is_kept(environment: Environment) -> None:
    HardStateFile(FOLDER, environment.fs).save(HardState(4, "n1"))
    made = mark_of(environment).mark("the log", is_vote_lost=False)
    assert load(environment, LOG) == (HardState(4, "n1"), made)


def test_empty_disk_of_a_group_is_marked_before_anything_is_written(environment: Environment) -> None:
    state, impairment = load(environment, EMPTY)
    assert state == HardState(0, None)
    assert impairment is not None
    assert impairment.is_vote_lost
    HardStateFile(FOLDER, environment.fs).save(HardState(7, None))  # a term of others, then a restart
    assert load(environment, EMPTY) == (HardState(7, None), impairment)


@pytest.mark.parametrize("is_there", [True, False])
def test_vote_file_damaged_or_missing_beside_a_log(environment: Environment, is_there: bool) -> None:
    if is_there:
        write(environment, "currterm", b"currTerm=9\n")
    state, impairment = load(environment, LOG)
    assert state == HardState(4, None), "the last entry's term is known at least"
    assert impairment is not None
    assert impairment.is_vote_lost
    names = environment.fs.list(FOLDER)
    assert names == ["currterm.damaged", "impaired"] if is_there else ["impaired"]
    if is_there:
        assert read(environment, "currterm.damaged") == b"currTerm=9\n"


def test_vote_file_older_than_the_log_is_not_believed(environment: Environment) -> None:
    HardStateFile(FOLDER, environment.fs).save(HardState(3, "n0"))
    state, impairment = load(environment, LOG)
    assert state == HardState(4, None)
    assert impairment is not None
    assert "says term 3, the log 4" in impairment.reason


def test_group_of_one_is_never_impaired(environment: Environment) -> None:
    assert load(environment, EMPTY, ALONE) == (HardState(0, None), None)
    assert environment.fs.list(FOLDER) == []
    assert load(environment, LOG, ALONE) == (HardState(4, None), None)
    write(environment, "currterm", b"nonsense")
    with pytest.raises(CorruptHardStateError):
        load(environment, LOG, ALONE)


@pytest.mark.parametrize(("voted_for", "is_impaired"), [(None, True), ("n0", False)])
def test_only_voter_by_a_log_that_others_fill_up(
    environment: Environment, voted_for: str | None, is_impaired: bool
) -> None:
    """It does not lead its like alone; a node that an operator made the only voter has voted for itself."""
    mark_of(environment).mark("its disk is empty", is_vote_lost=True)
    alone = ConfigurationEntry(LOG.begin_index, LOG.epochs[0].term, Configuration.of_voters(("n0",), 3))
    HardStateFile(FOLDER, environment.fs).save(HardState(9, voted_for, ConfigurationHistory((alone,)), 2))
    state, impairment = load(environment, LOG)
    assert (state.generation, impairment is not None) == (2, is_impaired)


def test_healed_node_starts_without_a_mark(environment: Environment) -> None:
    durable_state = DurableState(GROUP, FOLDER, environment)
    durable_state.load(LOG)
    durable_state.save(HardState(5, "n0"))
    durable_state.heal()
    assert load(environment, LOG) == (HardState(5, "n0"), None)


@pytest.mark.parametrize("name", ["currterm", "impaired"])
def test_file_that_cannot_be_read_counts_as_damaged(environment: Environment, name: str) -> None:
    fs = environment.fs
    assert isinstance(fs, MemoryFs)
    HardStateFile(FOLDER, fs).save(HardState(7, "n1"))
    mark_of(environment).mark("the log was cut", is_vote_lost=False)
    fs.fail({"pread"}, errno.EIO, is_lasting=True, folder=FOLDER / name)
    _, impairment = DurableState(GROUP, FOLDER, environment).load(LOG)
    assert impairment is not None
    assert impairment.is_vote_lost
