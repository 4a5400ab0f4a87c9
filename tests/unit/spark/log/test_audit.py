"""The audit names what is wrong, where, and in which replica, and finds nothing where nothing is wrong."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from commitlog.entry import HEADER, HEADER_BYTES
from rocketmq_spark.errors import OptionError
from rocketmq_spark.jobs.audit.report import check_seal
from rocketmq_spark.log.planning import plan_ranges
from tests.unit.spark.log.auditing import NAMES, audit, write_group, write_plain_group
from tests.unit.spark.log.stores import (
    DATA_FILE_BYTES,
    INDEX_FILE_BYTES,
    Put,
    flip,
    numbered,
    one_log,
    patch,
    positions,
    records,
    walk,
    write_bodies,
    write_entries,
)

COUNT = 60
RANGES = (1024, 5000, 1 << 20)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("group")
    write_group(root, numbered(COUNT))
    return root


@pytest.fixture
def group(tmp_path: Path, whole: Path) -> list[Path]:
    """Three replicas to be damaged."""
    shutil.copytree(whole, tmp_path / "group")
    return [tmp_path / "group" / name / f"dledger-{name}" for name in NAMES]


def places_of(folder: Path) -> list[int]:
    log = one_log(folder)
    found = positions(walk(log, plan_ranges(log, 1 << 30)))
    log.storage.close()
    return found


def file_of(folder: Path, position: int) -> tuple[Path, int]:
    number, at = divmod(position, DATA_FILE_BYTES)
    return folder / "data" / f"{number * DATA_FILE_BYTES:020d}", at


def flip_entry(folder: Path, entry: int, byte: int) -> int:
    position = places_of(folder)[entry]
    path, at = file_of(folder, position)
    flip(path, at + byte)
    return position


@pytest.mark.parametrize("range_bytes", RANGES)
def test_identical_replicas_are_identical(group: list[Path], range_bytes: int) -> None:
    report = audit(group, range_bytes)
    assert report.is_identical
    assert report.exit_code == 0
    assert report.first_divergence is None
    content = report.content
    assert (content["problems"], content["notes"], content["entries"]) == ([], [], COUNT)
    assert [each["name"] for each in content["replicas"]] == list(NAMES)
    assert {each["committed"]["index"] for each in content["replicas"]} == {COUNT - 1}
    assert [queue["messages"] for queue in content["queues"]] == [30, 30]
    assert [epoch["firstIndex"] for epoch in content["epochs"]] == [0, 20, 40]
    for each in content["ranges"]:
        assert set(each["replicas"].values()) == {"same"}
    assert content["ranges"][0]["firstIndex"] == 0
    assert content["ranges"][-1]["lastIndex"] == COUNT - 1


def test_hashes_are_those_of_the_entries(group: list[Path]) -> None:
    content = audit(group, 1 << 20).content
    places = places_of(group[1])
    for each in content["ranges"]:
        digest = hashlib.sha256()
        for place in (place for place in places if each["firstPosition"] <= place < each["endPosition"]):
            path, at = file_of(group[1], place)
            data = path.read_bytes()[at:]
            digest.update(data[: HEADER.unpack_from(data)[1]])
        assert digest.hexdigest() == each["sha256"]


FIELDS = [
    (0, "entry.magic"),
    (6, "entry.size"),
    (15, "entry.index"),
    (20, "entry.term"),
    (31, "entry.position"),
    (34, "entry.channel"),
    (37, "entry.headerCrc"),
    (43, "entry.bodyCrc"),
    (47, "entry.bodyLength"),
    (HEADER_BYTES + 12, "record.queueId"),
    (HEADER_BYTES + 27, "record.queueOffset"),
    (HEADER_BYTES + 57, "record.storeTimestamp"),
    (HEADER_BYTES + 90, "record.body"),
    (255, "record.properties"),
]


@pytest.mark.parametrize(("byte", "field"), FIELDS)
@pytest.mark.parametrize("replica", [0, 2])
def test_a_flipped_bit_is_named(group: list[Path], replica: int, byte: int, field: str) -> None:
    entry = 33
    position = flip_entry(group[replica], entry, byte)
    report = audit(group)
    assert report.exit_code == 2
    first = report.first_divergence
    assert first is not None
    assert (first["replica"], first["index"], first["position"], first["field"]) == (
        NAMES[replica],
        entry,
        position,
        field,
    )
    assert first["kind"] == "divergence"
    kinds = {(each["kind"], each["replica"], each["index"]) for each in report.content["problems"]}
    assert kinds == {("divergence", NAMES[replica], entry), ("corrupt", NAMES[replica], entry)}
    states = [each["replicas"] for each in report.content["ranges"]]
    assert sum(state[NAMES[replica]] == "different" for state in states) == 1
    others = {state[name] for state in states for name in NAMES if name != NAMES[replica]}
    assert others == {"same"}


def test_a_divergent_replica_with_right_crcs_is_named_by_the_majority(tmp_path: Path) -> None:
    puts = numbered(COUNT)
    folders = write_group(tmp_path, puts)
    shutil.rmtree(tmp_path / "n0")
    changed = [*puts[:25], replace(puts[25], body=b"X" + puts[25].body[1:]), *puts[26:]]
    folders[0] = write_entries(tmp_path / "n0", changed)
    report = audit(folders)
    first = report.first_divergence
    assert first is not None
    assert (first["replica"], first["index"]) == ("n0", 25)
    assert first["field"] == "entry.bodyCrc"
    assert {each["kind"] for each in report.content["problems"]} == {"divergence"}
    assert report.content["problemCount"] == 1


def test_an_entry_of_another_term_is_named(tmp_path: Path) -> None:
    puts = numbered(COUNT, terms=1)
    folders = write_group(tmp_path, puts)
    shutil.rmtree(tmp_path / "n2")
    folders[2] = write_entries(
        tmp_path / "n2", [*puts[:50], *(replace(put, term=2) for put in puts[50:])], node="dledger-n2"
    )
    first = audit(folders).first_divergence
    assert first is not None
    assert (first["replica"], first["index"], first["field"]) == ("n2", 50, "entry.term")


@pytest.mark.parametrize("range_bytes", RANGES)
def test_a_truncated_tail_and_a_missing_file_are_named(group: list[Path], range_bytes: int) -> None:
    places = places_of(group[0])
    path, at = file_of(group[1], places[COUNT - 3])
    with path.open("r+b") as file:
        file.truncate(at)
    (group[2] / "data" / f"{DATA_FILE_BYTES:020d}").unlink()
    report = audit(group, range_bytes)
    problems = report.content["problems"]
    missing = {(each["replica"], each["kind"]) for each in problems if each["kind"] == "missing"}
    assert missing == {("n1", "missing"), ("n2", "missing")}
    first = report.first_divergence
    assert first is not None
    behind = next(index for index, place in enumerate(places) if place >= DATA_FILE_BYTES)
    assert (first["replica"], first["index"], first["position"]) == ("n2", behind, DATA_FILE_BYTES)
    assert min(each["index"] for each in problems if each["replica"] == "n1") == COUNT - 3


def test_a_replica_behind_is_held_to_what_it_has_committed(tmp_path: Path) -> None:
    puts = numbered(COUNT)
    folders = write_group(tmp_path, puts, committed=(COUNT - 1, 20, COUNT - 1))
    report = audit(folders)
    assert report.is_identical, report.content["problems"]
    assert report.content["commonEnd"]["index"] == 20
    assert report.content["replicas"][1]["committed"]["index"] == 20
    assert report.content["replicas"][1]["ranges"]["absent"] > 0
    assert report.content["entries"] == COUNT


def test_uncommitted_entries_may_differ(tmp_path: Path) -> None:
    puts = numbered(40)
    folders = write_group(tmp_path, puts, committed=(39, 30, 39))
    shutil.rmtree(tmp_path / "n1")
    other = [*puts[:31], *(replace(put, body=b"lost" + put.body) for put in puts[31:])]
    folders[1] = write_entries(tmp_path / "n1", other, committed=30, node="dledger-n1")
    assert audit(folders).is_identical


@pytest.mark.parametrize(("byte", "field"), [(8, "position"), (15, "size"), (20, "index"), (31, "term")])
def test_a_wrong_index_unit_is_named(group: list[Path], byte: int, field: str) -> None:
    file, at = divmod(44 * 32 + byte, INDEX_FILE_BYTES)
    flip(group[1] / "index" / f"{file * INDEX_FILE_BYTES:020d}", at)
    [problem] = audit(group).content["problems"]
    assert (problem["kind"], problem["replica"], problem["index"], problem["field"]) == (
        "index",
        "n1",
        44,
        field,
    )


def test_a_damaged_blank_is_named(group: list[Path]) -> None:
    places = places_of(group[2])
    last = max(place for place in places if place < DATA_FILE_BYTES)
    path = group[2] / "data" / f"{0:020d}"
    size = HEADER.unpack_from(path.read_bytes(), last)[1]
    flip(path, last + size + 6)
    [problem] = audit(group).content["problems"]
    assert (problem["kind"], problem["replica"], problem["position"]) == ("blank", "n2", last + size)


def test_gaps_and_repeats_of_queue_offsets_are_named(tmp_path: Path) -> None:
    """In all replicas alike: no comparison tells."""
    puts = numbered(30, queues=1)
    holes = [*puts[:10], *puts[11:]]  # the records keep the offsets they were given
    folders = [_store_with_offsets(tmp_path / name, puts, holes, name) for name in NAMES]
    [problem] = audit(folders).content["problems"]
    assert (problem["kind"], problem["replica"], problem["field"]) == ("offset", "all", "record.queueOffset")
    assert "offset 11 follows 9, a gap" in problem["detail"]
    twice = [*puts[:10], puts[9], *puts[10:]]
    folders = [_store_with_offsets(tmp_path / f"again-{name}", puts, twice, name) for name in NAMES]
    [problem] = audit(folders).content["problems"]
    assert "offset 9 follows 9, a repeat" in problem["detail"]


def _store_with_offsets(root: Path, puts: list[Put], kept: list[Put], name: str) -> Path:
    numbers = {put.body: record for put, record in zip(puts, records(puts), strict=True)}
    return write_bodies(root, [(put.term, numbers[put.body]) for put in kept], node=f"dledger-{name}")


def test_a_topic_made_again_is_a_note(tmp_path: Path) -> None:
    bodies = [(1, record) for record in (*records(numbered(10)), *records(numbered(6)))]
    folders = [write_bodies(tmp_path / name, bodies, node=f"dledger-{name}") for name in NAMES]
    report = audit(folders)
    assert report.is_identical
    assert len(report.content["notes"]) == 2
    assert "begins again" in report.content["notes"][0]


@pytest.mark.parametrize("range_bytes", RANGES)
def test_plain_logs_are_audited_with_their_queues(tmp_path: Path, range_bytes: int) -> None:
    folders = write_plain_group(tmp_path, numbered(COUNT))
    report = audit(folders, range_bytes, wants_queues=True)
    assert report.is_identical, report.content["problems"]
    assert report.content["entries"] == COUNT
    assert report.content["notes"] == []


def test_a_flipped_bit_of_a_plain_log_is_named(tmp_path: Path) -> None:
    folders = write_plain_group(tmp_path, numbered(COUNT))
    places = places_of(folders[0])
    number, at = divmod(places[31], DATA_FILE_BYTES)
    flip(folders[0] / f"{number * DATA_FILE_BYTES:020d}", at + 95)
    first = audit(folders).first_divergence
    assert first is not None
    assert (first["replica"], first["position"], first["field"]) == ("a/commitlog", places[31], "record.body")


def test_wrong_and_missing_units_of_a_consume_queue_are_named(tmp_path: Path) -> None:
    folders = write_plain_group(tmp_path, numbered(COUNT))
    queue = tmp_path / "b" / "consumequeue" / "T" / "1"
    flip(queue / f"{0:020d}", 7 * 20 + 7)
    patch(queue / f"{400:020d}", 0, lambda data: bytes(len(data)), 20)
    assert audit(folders).is_identical
    problems = audit(folders, wants_queues=True).content["problems"]
    assert {(each["kind"], each["replica"]) for each in problems} == {("queue", "b/commitlog")}
    words = " ".join(each["detail"] for each in problems)
    assert "T queue 1 offset 7" in words
    assert "offset 20 has no unit" in words


def test_the_report_is_sealed_and_signed(group: list[Path]) -> None:
    report = audit(group, key=b"secret")
    data = report.to_json()
    assert check_seal(data) is None
    assert check_seal(data, b"secret") is None
    assert "not signed with this key" in (check_seal(data, b"other") or "")
    assert "changed" in (check_seal(data.replace(b'"identical"', b'"different"'), b"secret") or "")
    assert check_seal(audit(group).to_json(), b"secret") == "it is not signed"
    assert check_seal(b"[]") == "it is no audit's report"
    assert b"secret" not in data


def test_the_page_tells_the_divergence_and_loads_nothing(group: list[Path]) -> None:
    flip_entry(group[1], 12, 100)
    text = audit(group).to_html()
    assert "Not identical" in text
    assert "entry 12" in text
    assert text.count("<svg") == 2
    for word in ("<script", "<link", "@import", "src=", "url(http"):
        assert word not in text
    assert "Identical" in audit(group[::2]).to_html()


def test_stores_that_cannot_be_audited_are_refused(tmp_path: Path, group: list[Path]) -> None:
    write_plain_group(tmp_path, numbered(3))
    for stores, words in (
        ([tmp_path / "nowhere"], "nothing at"),
        ([group[0], tmp_path / "a"], "of one format"),
        ([group[0], group[0]], "twice"),
    ):
        with pytest.raises(OptionError, match=words):
            audit(stores)
    (group[1] / "checkpoint").unlink()
    with pytest.raises(OptionError, match="no checkpoint"):
        audit(group)
