"""What a replay sends: everything once, a queue in order, and a batch again just as it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketmq_spark.errors import JobError
from rocketmq_spark.jobs.archive.manifest import DataFile, QueueName, Run
from rocketmq_spark.jobs.replay.job import (
    ARROW_BURST_S,
    ARROW_BYTES,
    ARROW_ROWS,
    BATCH_MESSAGES_MAX,
    BATCH_S,
    DEFAULT_BATCH_MESSAGES,
    ReplayOptions,
    arrow_bounds,
    batch_messages_at,
    sink_options,
)
from rocketmq_spark.jobs.replay.plan import (
    Left,
    Slice,
    Window,
    archive_slices,
    bytes_in,
    messages_in,
    positions_after,
)
from rocketmq_spark.jobs.replay.rate_limit import Rate, shares
from rocketmq_spark.jobs.replay.state import ReplayState, StateFile, format_state, parse_state

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
    left = Left(waiting, positions)
    total = left.messages
    while parts := left.next_batch(messages_max, parts_max):
        assert len(parts) <= parts_max
        assert all(parts)
        queues = [{one.queue for one in part} for part in parts]
        assert sum(map(len, queues)) == len(set().union(*queues))  # a queue is of one task
        assert sum(map(messages_in, parts)) <= messages_max
        for part in parts:
            sent += offsets_of(part)
        positions = positions_after(parts, positions)
        left.done(parts)
        restarted = Left(waiting, positions)
        assert left.messages == restarted.messages == total - len(sent)
        if len(sent) % 2:
            left = restarted
    for queue in QUEUES:
        in_order = [offset for of, offset in sent if of == queue]
        assert in_order == [offset for _, offset in offsets_of(waiting.get(queue, []))]


def test_where_there_are_more_queues_than_messages_all_have_their_turn() -> None:
    queues = [QueueName("Orders", "broker-a", queue) for queue in range(100)]
    left = Left({queue: [Slice(*queue, 0, 9)] for queue in queues}, {})
    seen: set[QueueName] = set()
    for _ in range(4):
        parts = left.next_batch(30, 2)
        assert [messages_in(part) for part in parts] == [15, 15]
        seen |= {one.queue for part in parts for one in part}
        left.done(parts)
    assert seen == set(queues)


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


def test_tasks_with_bodies_of_other_sizes_end_together_at_a_rate_in_bytes() -> None:
    """One queue has 20 times larger bodies: its task gets the share that they need."""
    sizes = [4_000, 200, 200, 200]
    runs = [Run("Orders", "broker-a", n, 0, 999, 0, 9, 1_000 * size, "") for n, size in enumerate(sizes)]
    left = Left(archive_slices([DataFile("a", 1, 4_000, tuple(runs))], [], Window()), {})
    assert left.message_bytes == sum(sizes) / 4
    rate = Rate(body_bytes=100_000)
    parts = left.next_batch(4_000, 2)
    given = shares(rate, [rate.seconds_for(messages_in(part), bytes_in(part)) for part in parts])
    took_s = [
        of_task.seconds_for(messages_in(part), bytes_in(part))
        for part, of_task in zip(parts, given, strict=True)
    ]
    assert took_s == [pytest.approx(sum(sizes) * 1_000 / 100_000)] * 2


def test_a_batch_is_what_the_rate_allows_in_its_time() -> None:
    assert batch_messages_at(Rate(), 100) == DEFAULT_BATCH_MESSAGES
    assert batch_messages_at(Rate(messages=5_000), 0) == 5_000 * BATCH_S
    assert batch_messages_at(Rate(messages=5_000, body_bytes=1_000), 100) == 10 * BATCH_S
    assert batch_messages_at(Rate(body_bytes=1_000), 0) == DEFAULT_BATCH_MESSAGES
    assert batch_messages_at(Rate(messages=1e9), 0) == BATCH_MESSAGES_MAX


def test_what_spark_gathers_in_all_tasks_is_bounded() -> None:
    """Each task gathers rows: many of them would hold back, and then send at once, seconds of the rate."""
    assert arrow_bounds(Rate(), 4) == {}
    found = arrow_bounds(Rate(messages=16_000, body_bytes=8_000), 4)
    assert found == {
        ARROW_ROWS: str(round(4_000 * ARROW_BURST_S)),
        ARROW_BYTES: str(round(2_000 * ARROW_BURST_S)),
    }
    assert arrow_bounds(Rate(messages=1), 4) == {ARROW_ROWS: "1"}


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
    state = state_with(tuple(tuple(part) for part in Left(waiting, {}).next_batch(most, 2)))
    assert parse_state(format_state(state)) == state
    settled = replace(state, delivery="exactly-once")
    assert parse_state(format_state(settled)) == settled


def test_a_state_of_an_older_version_has_settled_nothing() -> None:
    fields = orjson.loads(format_state(state_with()))
    del fields["delivery"]
    assert parse_state(orjson.dumps(fields)) == state_with()


def test_what_is_noted_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []

    def note(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    monkeypatch.setattr("rocketmq_spark.jobs.archive.store.os.fsync", note)
    StateFile(str(tmp_path / "state.json")).write(state_with())
    assert synced == ["state.json.new", tmp_path.name]


@pytest.mark.parametrize(
    ("delivery", "settled", "expected"),
    [
        ("auto", "exactly-once", "exactly-once"),
        ("auto", "at-least-once", "at-least-once"),
        ("at-least-once", "exactly-once", "at-least-once"),
        ("exactly-once", "", "exactly-once"),
    ],
)
def test_what_was_settled_is_kept(delivery: str, settled: str, expected: str) -> None:
    options = ReplayOptions("h:1", "T", "s", delivery=delivery, connection_options={"retryTimeout": "9s"})
    found = sink_options(options, replace(state_with(), delivery=settled))
    assert found["delivery"] == expected
    assert found.get("writerId") == ("replay-1" if expected == "exactly-once" else None)
    assert found["retryTimeout"] == "9s"


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
