"""The vote file: what was saved is what is loaded, and damage is never taken for a vote."""

import os
import random
import zlib
from pathlib import Path

import pytest

from dledger.codec import INTEGER_MAX, NUMBER_MAX
from dledger.core.membership import (
    Configuration,
    ConfigurationEntry,
    ConfigurationHistory,
    first_configuration,
)
from dledger.core.types import HardState
from dledger.durable_state import CorruptHardStateError, HardStateFile
from tests.support.memory_fs import MemoryFs, PowerLossError

FOLDER = Path("/state")


def test_load_without_file_is_a_new_node(tmp_path: Path) -> None:
    assert HardStateFile(tmp_path).load() == HardState(term=0, voted_for=None)


@pytest.mark.parametrize(
    "state",
    [HardState(7, "n1"), HardState(8, None), HardState(1 << 40, "n0"), HardState(1002, None, None, 3)],
)
def test_save_then_load_gives_the_same_state(tmp_path: Path, state: HardState) -> None:
    HardStateFile(tmp_path).save(state)
    assert HardStateFile(tmp_path).load() == state


@pytest.mark.parametrize("term", [-1, NUMBER_MAX + 1, INTEGER_MAX])
def test_load_refuses_a_term_that_no_ballot_can_leave(tmp_path: Path, term: int) -> None:
    HardStateFile(tmp_path).save(HardState(term, None))
    with pytest.raises(CorruptHardStateError, match=f"no group reaches term {term}"):
        HardStateFile(tmp_path).load()


@pytest.mark.parametrize("generation", ["-1", str(NUMBER_MAX + 1), "one"])
def test_load_refuses_a_generation_that_is_none(tmp_path: Path, generation: str) -> None:
    body = f"currTerm=1\nvoteLeader=n0\nformatVersion=1\ngeneration={generation}\n".encode()
    (tmp_path / "currterm").write_bytes(body + b"crc32=%d\n" % zlib.crc32(body))
    with pytest.raises(CorruptHardStateError, match=r"no group reaches generation|no term and vote"):
        HardStateFile(tmp_path).load()


def test_the_file_of_a_group_that_was_never_recovered_names_no_generation(tmp_path: Path) -> None:
    """So it is what release 0.1.0 writes, byte for byte."""
    HardStateFile(tmp_path).save(HardState(5, "n2"))
    body, _, checksum = (tmp_path / "currterm").read_bytes().rpartition(b"crc32=")
    assert body == b"currTerm=5\nvoteLeader=n2\nformatVersion=1\n"
    assert checksum == b"%d\n" % zlib.crc32(body)


def test_save_replaces_the_state_before(tmp_path: Path) -> None:
    file = HardStateFile(tmp_path)
    file.save(HardState(1, "n0"))
    file.save(HardState(2, None))
    assert file.load() == HardState(2, None)
    assert [path.name for path in tmp_path.iterdir()] == ["currterm"]


def test_java_reader_finds_its_keys(tmp_path: Path) -> None:
    HardStateFile(tmp_path).save(HardState(5, "n2"))
    lines = (tmp_path / "currterm").read_text().splitlines()
    assert "currTerm=5" in lines
    assert "voteLeader=n2" in lines


def test_load_refuses_every_cut_of_the_file(tmp_path: Path) -> None:
    file = HardStateFile(tmp_path)
    file.save(HardState(12, "n1"))
    whole = (tmp_path / "currterm").read_bytes()
    for length in range(len(whole) - 1):  # without the last line feed the content is still complete
        (tmp_path / "currterm").write_bytes(whole[:length])
        with pytest.raises(CorruptHardStateError):
            file.load()


def test_load_refuses_every_flipped_bit(tmp_path: Path) -> None:
    file = HardStateFile(tmp_path)
    file.save(HardState(12, "n1"))
    whole = (tmp_path / "currterm").read_bytes()
    for position in range(len(whole) - 1):
        damaged = bytearray(whole)
        damaged[position] ^= 0x04
        (tmp_path / "currterm").write_bytes(bytes(damaged))
        with pytest.raises(CorruptHardStateError):
            file.load()


def test_load_refuses_an_unknown_version(tmp_path: Path) -> None:
    body = b"currTerm=1\nvoteLeader=n0\nformatVersion=99\n"
    (tmp_path / "currterm").write_bytes(body + b"crc32=%d\n" % zlib.crc32(body))
    with pytest.raises(CorruptHardStateError, match="version 99"):
        HardStateFile(tmp_path).load()


def test_vote_found_after_a_kill_within_the_save_is_made_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []

    def record(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)

    HardStateFile(tmp_path).save(HardState(3, "n1"))
    monkeypatch.setattr(os, "fsync", record)
    assert HardStateFile(tmp_path).load() == HardState(3, "n1")
    assert synced == [tmp_path.stat().st_ino]


@pytest.mark.parametrize("steps", range(12))
def test_vote_outlives_a_power_failure_at_any_moment(steps: int) -> None:
    """Within the save the old vote is found or the new one; after it the new one."""
    for seed in range(20):
        fs = MemoryFs()
        fs.make_directory(FOLDER)
        HardStateFile(FOLDER, fs).save(HardState(3, "n1"))
        allowed = {HardState(4, "n2")}
        try:
            with fs.stopping_after(steps):
                HardStateFile(FOLDER, fs).save(HardState(4, "n2"))
        except PowerLossError:
            allowed.add(HardState(3, "n1"))
        found = HardStateFile(FOLDER, fs.crash(random.Random(seed))).load()
        assert found in allowed, seed


def test_configurations_are_kept(tmp_path: Path) -> None:
    voters = Configuration.of_voters(("n0", "n1"), 3)
    history = ConfigurationHistory(
        (*first_configuration(voters), ConfigurationEntry(3, 1, voters.without("n1"))),
        (ConfigurationEntry(2, 1, voters),),
    )
    state = HardState(4, "n1", history)
    HardStateFile(tmp_path).save(state)
    assert HardStateFile(tmp_path).load() == state
