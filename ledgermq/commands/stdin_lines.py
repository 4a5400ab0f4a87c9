"""Lines of stdin on the event loop, without a thread that a Ctrl-C would have to wait for."""

import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterator

from ledgermq.errors import UserError

LINE_BYTES_MAX = 4 * 1024 * 1024
"""A message body may not be longer."""


async def stdin_lines() -> AsyncIterator[bytes]:
    """Each line without its end.

    Raises: UserError for a line that is too long to be a message.
    """
    reader = await _pipe_reader()
    while True:
        line = await _read_line(reader)
        if not line:
            return
        if len(line) > LINE_BYTES_MAX:
            raise UserError(f"a line is longer than {LINE_BYTES_MAX} bytes, the most a message can hold.")
        yield line.rstrip(b"\r\n")


async def _read_line(reader: asyncio.StreamReader | None) -> bytes:
    if reader is None:
        return sys.stdin.buffer.readline(LINE_BYTES_MAX + 1)
    try:
        return await reader.readline()
    except ValueError:
        return bytes(LINE_BYTES_MAX + 1)


async def _pipe_reader() -> asyncio.StreamReader | None:
    """None when stdin is a file or the like: the loop cannot watch it, and it never keeps one waiting."""
    mode = os.fstat(sys.stdin.fileno()).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return None
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer
    )
    return reader
