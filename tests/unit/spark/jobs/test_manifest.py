"""The manifest: what it says survives writing and reading, and no gap or overlap passes it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketmq_spark.errors import ManifestError
from rocketmq_spark.jobs.archive.manifest import (
    Batch,
    DataFile,
    Head,
    ManifestCheck,
    QueueName,
    Run,
    Span,
    breaks,
    format_batch,
    parse_batches,
    parse_last_head,
    problems,
    spans_after,
)

QUEUE = QueueName("Orders", "broker-a", 0)
OTHER = QueueName("Orders", "broker-a", 1)


def run(first: int, last: int, queue: QueueName = QUEUE) -> Run:
    return Run(*queue, first, last, 1_000, 2_000, 10 * (last - first + 1), f"digest-{first}-{last}")


def data_file(name: str, *runs: Run) -> DataFile:
    return DataFile(f"topic=Orders/{name}.parquet", 100, sum(one.messages for one in runs), runs)


def batches_of(*groups: list[DataFile]) -> list[Batch]:
    """Batches of one query, numbered from 0, with the spans that follow from them."""
    found: list[Batch] = []
    spans: dict[QueueName, Span] = {}
    for number, files in enumerate(groups):
        spans = spans_after(spans, files)
        found.append(Batch(Head(number, "query", number, 5_000 + number, spans), tuple(files)))
    return found


queues = st.builds(
    QueueName, st.sampled_from(["Orders", "%RETRY%g", "123"]), st.sampled_from("ab"), st.integers(0, 3)
)


@st.composite
def whole_archives(draw: st.DrawFn) -> list[Batch]:
    """Queues from anywhere, cut into runs anywhere, spread over files and batches in order."""
    ends: dict[QueueName, int] = {}
    groups = []
    for number in range(draw(st.integers(1, 4))):
        files = []
        for at in range(draw(st.integers(1, 4))):
            runs = []
            for queue in draw(st.lists(queues, min_size=1, max_size=3)):
                first = ends.get(queue, draw(st.integers(0, 50)))
                last = first + draw(st.integers(0, 20))
                ends[queue] = last + 1
                runs.append(run(first, last, queue))
            files.append(data_file(f"{number}-{at}", *runs))
        groups.append(draw(st.permutations(files)))
    return batches_of(*groups)


@given(whole_archives())
def test_what_is_written_is_read(batches: list[Batch]) -> None:
    assert parse_batches(b"".join(map(format_batch, batches))) == batches


@given(whole_archives())
def test_a_whole_archive_has_no_problem(batches: list[Batch]) -> None:
    assert problems(iter(batches)) == []
    check = ManifestCheck()
    assert [problem for batch in batches for problem in check.problems(batch)] == []
    files = [file for batch in batches for file in batch.files]
    assert (check.batches, check.files) == (len(batches), len(files))
    assert check.messages == sum(file.rows for file in files)
    assert check.body_bytes == sum(batch.body_bytes for batch in batches)
    assert check.queues == len({one.queue for file in files for one in file.runs})


@given(whole_archives())
def test_the_last_head_is_read_without_the_rest(batches: list[Batch]) -> None:
    text = b"".join(map(format_batch, batches))
    assert parse_last_head(text) == batches[-1].head
    assert parse_last_head(b"no JSON\n" + format_batch(batches[-1])) == batches[-1].head
    for damaged in (text[:-1], text[text.index(b"\n") + 1 :] if len(batches) == 1 else text[:-1]):
        with pytest.raises(ManifestError):
            parse_last_head(damaged)


class Counted(dict[QueueName, Span]):
    """Counts how often it is copied: a copy for each batch is what makes a long manifest slow."""

    copies = 0

    def keys(self) -> Any:
        self.copies += 1
        return super().keys()


def test_a_long_manifest_is_looked_at_batch_by_batch() -> None:
    """What the check holds does not grow with the batches, and nothing that it holds is copied for each."""
    check = ManifestCheck()
    check.spans = spans = Counted()
    for number in range(500):
        file = data_file(str(number), run(10 * number, 10 * number + 9))
        batch = Batch(Head(number, "query", number, 0, {QUEUE: Span(0, 10 * number + 10)}), (file,))
        assert check.problems(batch) == []
    assert check.spans is spans
    assert spans.copies == 0
    assert (check.batches, check.queues, len(check._queries)) == (500, 1, 1)


def test_batches_out_of_their_order_are_named() -> None:
    batches = batches_of(*[[data_file(str(at), run(10 * at, 10 * at + 9))] for at in range(6)])
    del batches[1:4]
    found = problems([*batches, batches[-1]])
    assert "the manifest has no batches of number 1 to 3" in found
    assert "the manifest has more than one batch of number 5" in found


@given(whole_archives(), st.data())
def test_a_run_that_is_left_out_repeated_moved_or_cut_is_found(
    batches: list[Batch], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(batches) - 1))
    files = list(batches[at].files)
    which = data.draw(st.integers(0, len(files) - 1))
    runs = list(files[which].runs)
    one = data.draw(st.integers(0, len(runs) - 1))
    damage = data.draw(st.sampled_from(["left out", "twice", "moved", "cut"]))
    if damage == "left out":
        del runs[one]
    elif damage == "twice":
        runs.append(runs[one])
    elif damage == "moved":
        runs[one] = replace(
            runs[one], first_offset=runs[one].first_offset + 100, last_offset=runs[one].last_offset + 100
        )
    else:
        runs[one] = replace(runs[one], last_offset=runs[one].last_offset - 1)
    files[which] = replace(files[which], runs=tuple(runs), rows=sum(run.messages for run in runs))
    batches[at] = replace(batches[at], files=tuple(files))
    assert problems(batches) != []


@given(whole_archives(), st.data())
def test_a_batch_that_is_missing_is_found(batches: list[Batch], data: st.DataObject) -> None:
    if len(batches) > 1:
        del batches[data.draw(st.integers(0, len(batches) - 2))]
        assert any("no batches of number" in problem for problem in problems(batches))


@given(whole_archives(), st.data())
def test_a_cut_manifest_is_refused(batches: list[Batch], data: st.DataObject) -> None:
    text = format_batch(batches[0])
    length = data.draw(st.integers(1, len(text) - 1))
    with pytest.raises(ManifestError):
        parse_batches(text[:length])


def test_gap_and_overlap_are_named() -> None:
    files = [data_file("a", run(0, 9)), data_file("b", run(12, 19)), data_file("c", run(15, 29))]
    assert breaks(files, {}) == [
        "Orders/broker-a:0: offsets 10 to 11 are missing",
        "Orders/broker-a:0: offsets 15 to 19 are there twice",
    ]


def test_a_run_inside_another_does_not_hide_what_follows() -> None:
    files = [data_file("a", run(0, 99)), data_file("b", run(10, 19)), data_file("c", run(100, 109))]
    assert breaks(files, {}) == ["Orders/broker-a:0: offsets 10 to 19 are there twice"]


def test_a_batch_has_to_go_on_where_the_archive_ends() -> None:
    assert breaks([data_file("a", run(10, 19))], {QUEUE: 10}) == []
    assert breaks([data_file("a", run(10, 19))], {QUEUE: 8}) == [
        "Orders/broker-a:0: offsets 8 to 9 are missing"
    ]
    assert breaks([data_file("a", run(7, 19))], {QUEUE: 8}) == [
        "Orders/broker-a:0: offsets 7 to 7 are there twice"
    ]
    assert breaks([data_file("a", run(7, 19, OTHER))], {QUEUE: 8}) == []


def test_the_same_batch_twice_is_named() -> None:
    first, second = batches_of([data_file("a", run(0, 9))], [data_file("b", run(10, 19))])
    again = replace(second, head=replace(second.head, batch=first.head.batch))
    assert problems([first, again]) == ["batch 0 of query query comes behind its batch 0"]


def test_a_file_whose_rows_are_not_its_runs_is_named() -> None:
    (batch,) = batches_of([replace(data_file("a", run(0, 9)), rows=11)])
    assert problems([batch]) == ["topic=Orders/a.parquet: 11 rows, but runs of 10"]


def test_spans_that_do_not_follow_from_the_files_are_named() -> None:
    (batch,) = batches_of([data_file("a", run(0, 9))])
    wrong = replace(batch, head=replace(batch.head, spans={QUEUE: Span(0, 9)}))
    assert problems([wrong]) == ["the spans that batch 0 names are not those of its files"]


HEAD = b'{"manifest": 1, "sequence": 0, "query": "q", "batch": 0, "committed_ms": 0, "files": 1, "spans": '


@pytest.mark.parametrize(
    "text",
    [
        *(b"[]\n", b"{}\n", b'{"manifest": 2}\n', b'{"manifest": 1}\n', b"\xff\n"),
        *(HEAD + b"[3]}\n", HEAD + b"[]}\n{}\n"),
    ],
)
def test_what_is_no_manifest_is_refused(text: bytes) -> None:
    with pytest.raises(ManifestError):
        parse_batches(text)
