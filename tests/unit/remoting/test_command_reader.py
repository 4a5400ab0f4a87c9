"""What an incomplete frame may claim, and that its memory is free when the reader is cleared."""

import random

import pytest

from remoting import command_reader
from remoting.command import RemotingCommand, encode_command
from remoting.command_reader import MAPPED_BYTES_MIN, CommandReader
from remoting.connection import Connection
from remoting.memory_limit import MemoryLimit
from tests.unit.remoting.fakes import FakeOwner, FakeTransport

_LARGE = encode_command(RemotingCommand(10, 7, body=random.Random(1).randbytes(3 * MAPPED_BYTES_MIN)))
_SMALL = encode_command(RemotingCommand(105, 8))


@pytest.fixture(params=["compiled", "python"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> CommandReader:
    if request.param == "python":
        monkeypatch.setattr(command_reader, "_make_native", None)
    return CommandReader()


def test_frame_counts_with_its_length_from_its_first_bytes_on(reader: CommandReader) -> None:
    assert reader.announced_bytes == 0
    reader.feed(_LARGE[:4])
    assert reader.announced_bytes == 8
    reader.feed(_LARGE[4:9])
    assert (reader.partial_bytes, reader.announced_bytes) == (9, len(_LARGE))
    reader.feed(_LARGE[9:-1])
    assert (reader.partial_bytes, reader.announced_bytes) == (len(_LARGE) - 1, len(_LARGE))
    assert [command.code for command in reader.feed(_LARGE[-1:] + _SMALL).commands] == [10, 105]
    assert reader.announced_bytes == 0


@pytest.mark.parametrize("chunk_bytes", [1_000, 65_536, 500_000])
def test_large_frames_are_the_same_however_they_are_cut(reader: CommandReader, chunk_bytes: int) -> None:
    data = _SMALL + _LARGE + _SMALL + _LARGE
    found = [
        command
        for at in range(0, len(data), chunk_bytes)
        for command in reader.feed(data[at : at + chunk_bytes]).commands
    ]
    assert [command.code for command in found] == [105, 10, 105, 10]
    assert b"".join(command.body for command in found) == 2 * _LARGE[-3 * MAPPED_BYTES_MIN :]


@pytest.mark.parametrize("chunk_bytes", [65_536, 5_000_000])
def test_a_large_frame_whose_header_cannot_be_read_ends_the_stream(
    reader: CommandReader, chunk_bytes: int
) -> None:
    data = _SMALL + _LARGE[:8] + b"}" + _LARGE[9:]
    found = [reader.feed(data[at : at + chunk_bytes]) for at in range(0, len(data), chunk_bytes)]
    assert [command.code for each in found for command in each.commands] == [105]
    assert found[-1].error is not None
    assert found[-1].large == []


def test_cleared_reader_holds_nothing(reader: CommandReader) -> None:
    reader.feed(_LARGE[:-1])
    reader.clear()
    assert (reader.partial_bytes, reader.announced_bytes) == (0, 0)


async def test_closed_connection_holds_nothing_of_its_frame() -> None:
    limit = MemoryLimit(1 << 30, lambda: ())
    connection = Connection(FakeOwner(), 1, memory_limit=limit)
    connection.connection_made(FakeTransport())
    connection.data_received(_LARGE[:-1])
    assert limit.sum_bytes == len(_LARGE)
    connection.connection_lost(None)
    assert (limit.sum_bytes, connection.partial_bytes) == (0, 0)
    connection.data_received(_LARGE[-1:])
    assert connection.partial_bytes == 0
