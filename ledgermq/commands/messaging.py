"""`ledgermq produce`: sends lines of stdin, or generated messages, each acknowledged; and `ledgermq consume`:
prints each message as a line of text.

Stdin is read on the event loop, not in a thread: Ctrl-C would have to wait for the thread.
"""

import asyncio
import os
import stat
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ledgermq.client import Message, Producer
from ledgermq.errors import UserError
from ledgermq.messaging import Consumer, command_producer, messaging_client
from ledgermq.output import printable
from ledgermq.signals import run
from remoting.errors import ClientError

if TYPE_CHECKING:
    from rich.progress import Progress

LINE_BYTES_MAX = 4 * 1024 * 1024
"""The longest body that a message may have."""


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
    """None if stdin is a regular file: the event loop cannot watch it, and reading it never blocks long."""
    mode = os.fstat(sys.stdin.fileno()).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return None
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer
    )
    return reader


@dataclass(frozen=True, slots=True)
class ProduceOptions:
    """What to send: `count` messages of `size` bytes, or each line of stdin when `count` is None."""

    topic: str
    namesrv: str
    count: int | None
    size: int
    tag: str | None
    key: str | None
    rate: float | None
    in_flight: int


@dataclass(slots=True)
class _Tally:
    begun: int = 0
    sent: int = 0
    retried: int = 0
    failed: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def words(self, seconds: float) -> str:
        unanswered = self.begun - self.sent - self.failed
        text = (
            f"{self.sent} acknowledged in {seconds:.1f} s, {self.retried} of them after a retry, "
            f"{self.failed} failed"
        )
        return f"{text}, {unanswered} without an answer, which may be stored." if unanswered else f"{text}."


def produce(options: ProduceOptions) -> None:
    """Send, show the progress on stderr, and report how many messages were acknowledged.

    Raises: UserError when there is nothing to send, or a message was not acknowledged.
    """
    if options.count is None and sys.stdin.isatty():
        raise UserError(
            "nothing to send: give --count, or lines on stdin (`printf 'hello\\n' | ledgermq produce T`)."
        )
    run(send_messages(options))


async def send_messages(options: ProduceOptions) -> None:
    """`produce` on the running loop."""
    tally = _Tally()
    started_s = time.monotonic()
    try:
        async with command_producer(options.namesrv) as producer:
            with _progress() as progress:
                await _send_all(options, producer, tally, progress)
    finally:
        seconds = time.monotonic() - started_s
        print(tally.words(seconds), file=sys.stderr)
    if tally.failed:
        reason, _ = tally.reasons.most_common(1)[0]
        were = "message was" if tally.failed == 1 else "messages were"
        raise UserError(f"{tally.failed} {were} not acknowledged; most often: {reason}.")


async def _send_all(options: ProduceOptions, producer: Producer, tally: _Tally, progress: "Progress") -> None:
    bar = progress.add_task(f"to {options.topic}", total=options.count)
    room = asyncio.Semaphore(options.in_flight)
    keys = () if options.key is None else (options.key,)

    async def send(body: bytes) -> None:
        tally.begun += 1
        try:
            result = await producer.send(Message(options.topic, body, tag=options.tag, keys=keys))
        except ClientError as error:
            tally.failed += 1
            tally.reasons[str(error)] += 1
        else:
            tally.sent += 1
            tally.retried += result.tries > 1
        finally:
            progress.advance(bar)
            room.release()

    problem: UserError | None = None
    async with asyncio.TaskGroup() as sends:
        try:
            async for body in _paced(_bodies(options), options.rate):
                await room.acquire()
                sends.create_task(send(body))
        except UserError as error:
            problem = error  # raised after the task group, so that sends in flight can finish
    if problem is not None:
        raise problem


async def _bodies(options: ProduceOptions) -> AsyncIterator[bytes]:
    if options.count is not None:
        for number in range(options.count):
            yield made_up_body(number, options.size)
        return
    async for line in stdin_lines():
        yield line


def made_up_body(number: int, size: int) -> bytes:
    """`message 7 of 4711` (4711 is the pid), then dots up to `size` bytes. The text itself is never cut."""
    text = f"message {number} of {os.getpid()} "
    return text.ljust(size, ".").encode()[: max(size, len(str(number)) + 8)]


async def _paced(bodies: AsyncIterator[bytes], rate: float | None) -> AsyncIterator[bytes]:
    """Yield each body at its due time; a late one is yielded at once."""
    started_s = time.monotonic()
    number = 0
    async for body in bodies:
        if rate is not None:
            await asyncio.sleep(started_s + number / rate - time.monotonic())
        number += 1
        yield body


def _progress() -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


@dataclass(frozen=True, slots=True)
class ConsumeOptions:
    """What to read; `count` None: until Ctrl-C."""

    topic: str
    namesrv: str
    group: str
    from_first: bool
    count: int | None


def consume(options: ConsumeOptions) -> None:
    """Print bodies on stdout and remarks on stderr; commit the offsets of the printed messages.

    Raises: UserError.
    """
    try:
        run(print_messages(options))
    except ClientError as error:
        raise UserError(f"{error}.") from error


async def print_messages(options: ConsumeOptions) -> None:
    """`consume` on the running loop."""
    client = messaging_client()
    count = 0
    try:
        consumer = Consumer(
            client, options.namesrv, options.topic, options.group, from_first=options.from_first, say=_say
        )
        async with consumer:
            async for delivery in consumer.messages():
                _print(delivery.record.body.decode("utf-8", "replace"))
                consumer.consume(delivery)
                count += 1
                if count == options.count:
                    break
    finally:
        await client.close()
        _say(f"{count} messages.")


def _print(body: str) -> None:
    """Unchanged for a program; on a terminal control characters are escaped."""
    print(printable(body) if sys.stdout.isatty() else body, flush=True)


def _say(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)
