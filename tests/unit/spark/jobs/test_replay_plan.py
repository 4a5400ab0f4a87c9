"""What a replay sends: everything once, a queue in order, and a batch again just as it was."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketmq_spark.jobs.errors import JobError
from rocketmq_spark.jobs.manifest import DataFile, QueueName, Run
from rocketmq_spark.jobs.replay_plan import (
    Slice,
    Window,
    archive_slices,
    left_after,
    messages_in,
    next_batch,
    positions_after,
)
from rocketmq_spark.jobs.replay_state import ReplayState, StateFile, format_state, parse_state

QUEUES = [QueueName("Orders", "broker-a", queue) for queue in range(4)]


@st.composite
def amounts_waiting(draw: st.DrawFn) -> dict[QueueName, list[Slice]]:
    found: dict[QueueName, list[Slice]] = {}
    for queue in draw(st.lists(st.sampled_from(QUEUES), unique=True)):
        first = draw(st.integers(0, 100))
        slices = []
        for number in range(draw(st.integers(1, 4))):
            length = draw(st.integers(1, 30))
            slices.append(Slice(*queue, first, first + length - 1, f"{number}.parquet"))
            first += length + draw(st.integers(0, 5))
        found[queue] = slices
    return found


def offsets_of(slices: Sequence[Slice]) -> list[tuple[QueueName, int]]:
    return [(one.queue, offset) for one in slices for offset in range(one.first, one.last + 1)]


@given(amounts_waiting(), st.integers(1, 60), st.integers(1, 4))
def test_batch_after_batch_sends_everything_once_and_in_order(
    waiting: dict[QueueName, list[Slice]], messages_max: int, parts_max: int
) -> None:
    sent: list[tuple[QueueName, int]] = []
    positions: dict[QueueName, int] = {}
    while parts := next_batch(left_after(waiting, positions), messages_max, parts_max):
        assert len(parts) <= parts_max
        assert all(parts)
        queues = [{one.queue for one in part} for part in parts]
        assert sum(map(len, queues)) == len(set().union(*queues))  # a queue is of one task
        assert sum(map(messages_in, parts)) <= max(messages_max, len(QUEUES))
        for part in parts:
            sent += offsets_of(part)
        positions = positions_after(parts, positions)
    for queue in QUEUES:
        in_order = [offset for of, offset in sent if of == queue]
        assert in_order == [offset for _, offset in offsets_of(waiting.get(queue, []))]


def test_files_outside_of_topics_and_window_are_left_out() -> None:
    def file(name: str, topic: str, first_ms: int) -> DataFile:
        run = Run(topic, "broker-a", 0, 0, 9, first_ms, first_ms + 99, 0, "")
        return DataFile(name, 1, 10, (run,))

    files = [file("a", "Orders", 1000), file("b", "Orders", 1100), file("c", "Returns", 1000)]
    found = archive_slices(files, ["Orders"], Window(1099, 1100))
    assert [one.file for slices in found.values() for one in slices] == ["a"]
    assert set(archive_slices(files, [], Window())) == {
        ("Orders", "broker-a", 0),
        ("Returns", "broker-a", 0),
    }


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (Window(), True),
        (Window(start_ms=20), True),
        (Window(start_ms=21), False),
        (Window(end_ms=11), True),
        (Window(end_ms=10), False),
        (Window(5, 30), True),
    ],
)
def test_a_window_has_its_start_and_not_its_end(window: Window, expected: bool) -> None:
    assert window.may_hold(10, 20) is expected


def state_with(planned: Sequence[Sequence[Slice]] = ()) -> ReplayState:
    what = {"archive": "a", "topics": ["Orders"], "to": "Again"}
    return ReplayState("replay-1", what, {"sequence": 4}, 3, {QUEUES[0]: 17}, planned, 40)


@given(amounts_waiting(), st.integers(1, 60))
def test_a_state_is_read_as_it_was_written(waiting: dict[QueueName, list[Slice]], most: int) -> None:
    state = state_with(tuple(tuple(part) for part in next_batch(waiting, most, 2)))
    assert parse_state(format_state(state)) == state


def test_a_state_file_is_of_one_replay(tmp_path: Path) -> None:
    file = StateFile(str(tmp_path / "new" / "state.json"))
    what = dict(state_with().what)
    assert file.read(what) is None
    file.write(state_with())
    assert file.read(what) == state_with()
    with pytest.raises(
        JobError, match=r"is of another replay: to 'Again' there and 'Other' here\. Give another"
    ):
        file.read(what | {"to": "Other"})


@pytest.mark.parametrize("text", ["", "{}", '{"state": 2}', "[1]"])
def test_an_unreadable_state_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(text)
    with pytest.raises(JobError, match=r"state\.json is unreadable"):
        StateFile(str(path)).read({})
