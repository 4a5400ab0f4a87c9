"""Whatever is damaged: nothing raises, and every entry that is whole is read, exactly once."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitlog.entry import HEADER
from rocketmq_spark.log.planning import plan_ranges
from tests.support.long_runs import examples
from tests.unit.spark.log.auditing import audit, write_group
from tests.unit.spark.log.stores import (
    DATA_FILE_BYTES,
    damages,
    flip,
    numbered,
    one_log,
    positions,
    walk,
    write_entries,
    write_records,
)

COUNT = 50
SPANS = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 300)), min_size=1, max_size=5)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[int, int]]]:
    """A store, and (position, size) of its entries."""
    root = tmp_path_factory.mktemp("store")
    folder = write_entries(root, numbered(COUNT))
    found = positions(walk(one_log(root), plan_ranges(one_log(root), 1 << 30)))
    data = b"".join(path.read_bytes() for path in sorted((folder / "data").iterdir()))
    return root, [(place, HEADER.unpack_from(data, place)[1]) for place in found]


def overwrite(folder: Path, position: int, size: int) -> None:
    """Invert bytes of a row of files, as far as it goes."""
    for at in range(position, position + size):
        path = folder / f"{at // DATA_FILE_BYTES * DATA_FILE_BYTES:020d}"
        if path.exists():
            with path.open("r+b") as file:
                file.seek(at % DATA_FILE_BYTES)
                [byte] = file.read(1)
                file.seek(at % DATA_FILE_BYTES)
                file.write(bytes([byte ^ 0xFF]))


@settings(max_examples=examples(40), deadline=None)
@given(spans=SPANS, split_bytes=st.sampled_from([400, 3000, 1 << 30]), has_index=st.booleans())
def test_every_whole_entry_is_read(
    store: tuple[Path, list[tuple[int, int]]],
    spans: list[tuple[float, int]],
    split_bytes: int,
    has_index: bool,
) -> None:
    root, entries = store
    end = sum(entries[-1])
    hurt = [(int(place * end), size) for place, size in spans]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "store"
        shutil.copytree(root, copy)
        # Bytes that are inverted twice are as they were.
        inverted = [at for position, size in hurt for at in range(position, position + size)]
        hurt_bytes = {at for at in inverted if inverted.count(at) % 2}
        for at in hurt_bytes:
            overwrite(copy / "dledger-n0" / "data", at, 1)
        if not has_index:
            shutil.rmtree(copy / "dledger-n0" / "index")
        log = one_log(copy)
        found = walk(log, plan_ranges(log, split_bytes))
        log.storage.close()
    whole = [place for place, size in entries if hurt_bytes.isdisjoint(range(place, place + size))]
    assert positions(found) == whole
    assert bool(damages(found)) == (len(whole) < COUNT)


@settings(max_examples=examples(25), deadline=None)
@given(cut=st.floats(0, 1), removed=st.integers(0, 6), split_bytes=st.sampled_from([400, 1 << 30]))
def test_cut_and_lost_files_raise_nothing(
    store: tuple[Path, list[tuple[int, int]]], cut: float, removed: int, split_bytes: int
) -> None:
    root, entries = store
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "store"
        shutil.copytree(root, copy)
        rows = [copy / "dledger-n0" / name for name in ("data", "index")]
        files = sorted(path for row in rows for path in row.iterdir())
        with files[removed % len(files)].open("r+b") as file:
            file.truncate(int(cut * DATA_FILE_BYTES))
        files[(removed * 3 + 1) % len(files)].unlink()
        log = one_log(copy)
        found = positions(walk(log, plan_ranges(log, split_bytes)))
        log.storage.close()
    assert set(found) <= {place for place, _ in entries}
    assert len(set(found)) == len(found)


@settings(max_examples=examples(20), deadline=None)
@given(spans=SPANS)
def test_damage_of_a_plain_log_raises_nothing(spans: list[tuple[float, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = write_records(Path(folder), numbered(30))
        log = one_log(folder)
        whole = positions(walk(log, plan_ranges(log, 1 << 30)))
        for place, size in spans:
            overwrite(files, int(place * whole[-1]), size)
        log = one_log(folder)
        found = positions(walk(log, plan_ranges(log, 900)))
        log.storage.close()
    assert set(found) <= set(whole)
    assert len(set(found)) == len(found)


@settings(max_examples=examples(25), deadline=None)
@given(
    replica=st.integers(0, 2),
    place=st.floats(0, 1, exclude_max=True),
    range_bytes=st.sampled_from([1024, 1 << 20]),
)
def test_any_flipped_bit_of_an_entry_is_named_by_the_audit(
    replica: int, place: float, range_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        folders = write_group(Path(folder), numbered(20))
        log = one_log(folders[0])
        places = positions(walk(log, plan_ranges(log, 1 << 30)))
        log.storage.close()
        at = int(place * places[-1])
        number = max(number for number, start in enumerate(places) if start <= at)
        path = folders[replica] / "data" / f"{at // DATA_FILE_BYTES * DATA_FILE_BYTES:020d}"
        size = HEADER.unpack_from(path.read_bytes(), places[number] % DATA_FILE_BYTES)[1]
        at = min(at, places[number] + size - 1)
        flip(path, at % DATA_FILE_BYTES)
        first = audit(folders, range_bytes).first_divergence
    assert first is not None
    assert (first["replica"], first["index"], first["position"]) == (f"n{replica}", number, places[number])
