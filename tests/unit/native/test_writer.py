"""The compiled writer thread, on real files."""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dledger.fs import OsFs
from native import _log
from tests.support.long_runs import examples

LIMIT_S = 10.0


@pytest.fixture
def writer() -> Iterator[_log.Writer]:
    made = _log.Writer()
    yield made
    made.close()


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    opened = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield opened
    os.close(opened)


def do(writer: _log.Writer, steps: list[object]) -> None:
    writer.submit(steps)
    assert select.select([writer.fileno()], [], [], LIMIT_S)[0]
    assert 0 < writer.finish() < LIMIT_S
    assert select.select([writer.fileno()], [], [], 0)[0] == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 300), st.lists(st.binary(max_size=50), min_size=1, max_size=4)), max_size=9
    )
)
def test_steps_write_what_pwrite_does(
    writer: _log.Writer, fd: int, tmp_path: Path, writes: list[tuple[int, list[bytes]]]
) -> None:
    os.truncate(fd, 0)
    do(writer, [step for position, buffers in writes for step in ((fd, position, buffers), fd)])
    found = os.pread(fd, 10_000, 0)
    os.truncate(fd, 0)
    for position, buffers in writes:
        os.pwrite(fd, b"".join(buffers), position)
    assert found == os.pread(fd, 10_000, 0)


def test_more_buffers_than_one_call_takes_are_all_written(writer: _log.Writer, fd: int) -> None:
    buffers: list[bytes | memoryview] = [b"%04d" % number for number in range(2500)]
    buffers[7] = memoryview(b"xx0007xx")[2:6]
    do(writer, [(fd, 100, buffers), fd])
    assert os.pread(fd, 20_000, 100) == b"".join(b"%04d" % number for number in range(2500))


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=examples(40)
)
@given(
    st.integers(0, 20_000),
    st.lists(st.tuples(st.sampled_from([0, 1, 4095, 4096, 4097, 70_000, 1 << 20]), st.binary(max_size=20))),
)
def test_whole_blocks_that_go_past_the_page_cache_are_what_pwrite_writes(
    writer: _log.Writer, fd: int, tmp_path: Path, position: int, pieces: list[tuple[int, bytes]]
) -> None:
    direct_fd = OsFs().open_direct(tmp_path / "file")
    if direct_fd is None:
        pytest.skip("this file system has no such writes")
    buffers = [bytes(size) + tail for size, tail in pieces] or [b"one"]
    os.pwrite(fd, b"before" * 6000, 0)
    do(writer, [(fd, position, buffers, direct_fd), fd])
    os.close(direct_fd)
    found = os.pread(fd, 20 << 20, 0)
    os.truncate(fd, 0)
    os.pwrite(fd, b"before" * 6000, 0)
    os.pwrite(fd, b"".join(buffers), position)
    assert found == os.pread(fd, 20 << 20, 0)
    os.truncate(fd, 0)


def test_blocks_that_are_not_taken_go_the_ordinary_way(writer: _log.Writer, fd: int) -> None:
    """A file system may refuse these blocks (EINVAL), as a file that takes numbers does; any other error
    counts.
    """
    data = b"no number " * 300_000
    number = Path("/proc/self/oom_score_adj")
    if not number.exists():
        pytest.skip("no file at hand that refuses")
    refusing = os.open(number, os.O_RDWR)
    do(writer, [(fd, 4096 - 10, [data], refusing), fd])
    os.close(refusing)
    assert os.pread(fd, len(data) + 1, 4096 - 10) == data
    full = os.open("/dev/full", os.O_RDWR)
    writer.submit([(fd, 0, [data], full)])
    with pytest.raises(OSError, match="No space left"):
        writer.finish()
    os.close(full)


def test_the_first_step_that_fails_ends_the_job(writer: _log.Writer, fd: int, tmp_path: Path) -> None:
    read_only = os.open(tmp_path / "file", os.O_RDONLY)
    writer.submit([(fd, 0, [b"before"]), (read_only, 0, [b"x"]), (fd, 100, [b"after"])])
    with pytest.raises(OSError, match="Bad file descriptor") as failure:
        writer.finish()
    os.close(read_only)
    assert failure.value.errno == errno.EBADF
    assert os.pread(fd, 1000, 0) == b"before"
    do(writer, [(fd, 0, [b"again!"])])
    assert os.pread(fd, 1000, 0) == b"again!"


def test_a_full_disk_is_an_error(writer: _log.Writer) -> None:
    full = os.open("/dev/full", os.O_RDWR)
    writer.submit([(full, 0, [b"x"])])
    with pytest.raises(OSError, match="No space left"):
        writer.finish()
    os.close(full)


def test_a_pipe_cannot_be_synced(writer: _log.Writer) -> None:
    ends = os.pipe()
    writer.submit([ends[0]])
    with pytest.raises(OSError, match="Invalid argument"):
        writer.finish()
    for end in ends:
        os.close(end)


def test_one_job_at_a_time(writer: _log.Writer, fd: int) -> None:
    with pytest.raises(RuntimeError, match="no job"):
        writer.finish()
    writer.submit([fd])
    with pytest.raises(RuntimeError, match="under way"):
        writer.submit([fd])
    writer.finish()
    with pytest.raises(RuntimeError, match="no job"):
        writer.finish()


@pytest.mark.parametrize(
    "steps",
    [
        "text",
        ["text"],
        [(1, 2)],
        [(1, 2, 3)],
        [(1, -1, [b"x"])],
        [(-1, 0, [b"x"])],
        [(2**31, 0, [b"x"])],
        [(1, 2**63, [b"x"])],
        [(1, 0, [])],
        [(1, 0, (b"x",))],
        [(1, 0, [b"x", "text"])],
        [(1, 0, [b"x"], -1)],
        [(1, 0, [b"x"], 2**31)],
        [(1, 0, [b"x"], 1, 1)],
        [None],
        [-1],
        [1] * 65,
    ],
)
def test_what_is_no_job_is_refused_and_the_next_one_done(writer: _log.Writer, fd: int, steps: object) -> None:
    with pytest.raises(TypeError):
        writer.submit(steps)  # type: ignore[arg-type]
    do(writer, [(fd, 0, [b"x"])])


def test_closing_waits_for_the_job_and_ends_everything(fd: int) -> None:
    writer = _log.Writer()
    writer.submit([(fd, 0, [b"written"]), fd])
    writer.close()
    assert os.pread(fd, 1000, 0) == b"written"
    writer.close()
    for use in (writer.fileno, writer.finish, lambda: writer.submit([fd])):
        with pytest.raises(RuntimeError):
            use()


def test_many_writers_come_and_go_without_a_leak(fd: int) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 (no path of the project's)
    for _ in range(50):
        writer = _log.Writer()
        writer.submit([(fd, 0, [b"x"])])
        del writer
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_a_quiet_job_ends_without_a_sign(writer: _log.Writer, fd: int) -> None:
    writer.submit([(fd, 0, [b"quiet"]), fd], True)
    wait_till_done(writer)
    assert select.select([writer.fileno()], [], [], 0)[0] == []
    assert not writer.await_end()
    writer.finish()
    assert not writer.is_done()
    assert os.pread(fd, 1000, 0) == b"quiet"


def test_the_end_of_a_quiet_job_is_told_when_somebody_waits_or_it_failed(
    writer: _log.Writer, fd: int
) -> None:
    for _ in range(200):
        writer.submit([(fd, 0, [b"x"]), fd], True)
        if writer.await_end():
            assert select.select([writer.fileno()], [], [], LIMIT_S)[0]
            writer.clear()
            wait_till_done(writer)
        assert writer.is_done()
        writer.finish()
        writer.clear()
    writer.submit([(1 << 30, 0, [b"x"])], True)
    assert select.select([writer.fileno()], [], [], LIMIT_S)[0]
    with pytest.raises(OSError, match="Bad file descriptor"):
        writer.finish()


def wait_till_done(writer: _log.Writer) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not writer.is_done():
        assert time.monotonic() < deadline_s


def test_an_answer_leaves_after_what_stands_before_it(writer: _log.Writer, fd: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        do(writer, [(fd, 0, [b"written"]), fd, (ours.fileno(), b"answer"), (fd, 100, [b"behind"])])
        assert writer.take_back() == len(b"answer")
        assert theirs.recv(100) == b"answer"
        assert os.pread(fd, 7, 0) == b"written"
        assert os.pread(fd, 6, 100) == b"behind"


def test_there_is_no_answer_after_a_failure(writer: _log.Writer) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        writer.submit([(1 << 30, 0, [b"x"]), (ours.fileno(), b"answer")])
        with pytest.raises(OSError, match="Bad file descriptor"):
            writer.finish()
        assert writer.take_back() == 0
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(100)


def test_an_answer_is_sent_or_taken_back_and_never_both(writer: _log.Writer, fd: int) -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    with ours, theirs:
        for number in range(300):
            writer.submit([(fd, 0, [b"x"]), (ours.fileno(), b"%04d" % number)], True)
            for _ in range(number % 7 * 20):
                writer.is_done()
            sent = writer.take_back()
            assert sent in (0, 4)
            writer.finish()
            assert writer.take_back() == sent
            if sent:
                assert theirs.recv(100) == b"%04d" % number
            else:
                with pytest.raises(BlockingIOError):
                    theirs.recv(100)


def test_an_answer_that_has_no_room_is_left_to_the_loop(writer: _log.Writer, fd: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                ours.send(b"x" * 10_000)
        do(writer, [fd, (ours.fileno(), b"answer")])
        assert writer.take_back() == 0
    do(writer, [fd, (1 << 30, b"to nobody")])
    assert writer.take_back() == 0


@pytest.mark.parametrize(
    "steps", [[(1, "text")], [(-1, b"x")], [(1, bytearray(b"x"))], [(1, b"x"), (1, b"y")], [(1,)]]
)
def test_what_is_no_answer_is_refused(writer: _log.Writer, fd: int, steps: list[object]) -> None:
    with pytest.raises(TypeError):
        writer.submit(steps)
    do(writer, [(fd, 0, [b"x"])])
