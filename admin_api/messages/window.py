"""Searches a topic between two times, newest messages first, in bounded parts.

Each queue is a lane: the range of its offsets between the two times, read backwards in steps. Pulls only go
forward, so a step is read from its first offset and its messages are used from the last. A part ends when it
has enough messages or has pulled enough bytes; the rest of the lanes becomes the cursor.

The cursor is an opaque text that the client sends back. It is untrusted input: everything in it is checked,
and it cannot name a queue that the topic's route does not have.
"""

import base64
import binascii
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from admin_api.errors import InvalidError, UnavailableError
from admin_api.gateway import Gateway, Trouble
from admin_api.messages.places import Places, QueuePlace
from admin_api.sources.messages import MessageSource
from admin_api.sources.offsets import OffsetSource
from remoting.record import Record, get_property

CURSOR_CHARS_MAX: Final = 16_384
_PLAIN_BYTES_MAX: Final = 256 * 1024
_OFFSET_MAX: Final = 2**62


@dataclass(frozen=True, slots=True)
class Search:
    """What is searched: messages stored between two times (Unix ms, both included), with a tag or any."""

    topic: str
    from_ms: int
    to_ms: int
    tag: str | None = None


class LaneMark(BaseModel):
    """What is left to read of one queue: offsets from `low` to before `high`, `step` of them at once."""

    model_config = ConfigDict(frozen=True)

    broker_name: str = Field(max_length=255)
    queue_id: int = Field(ge=0, le=65_535)
    low: int = Field(ge=0, le=_OFFSET_MAX)
    high: int = Field(ge=0, le=_OFFSET_MAX)
    step: int = Field(ge=1, le=_OFFSET_MAX)


class _Content(BaseModel):
    topic: str
    from_ms: int = Field(ge=0, le=_OFFSET_MAX)
    to_ms: int = Field(ge=0, le=_OFFSET_MAX)
    tag: str | None
    lanes: list[tuple[str, int, int, int, int]]


def format_cursor(search: Search, lanes: list[LaneMark]) -> str | None:
    """None when nothing is left."""
    rows = [(mark.broker_name, mark.queue_id, mark.low, mark.high, mark.step) for mark in lanes]
    if not rows:
        return None
    fields = [search.topic, search.from_ms, search.to_ms, search.tag, rows]
    return base64.urlsafe_b64encode(zlib.compress(orjson.dumps(fields))).rstrip(b"=").decode()


def parse_cursor(text: str) -> tuple[Search, list[LaneMark]]:
    """Raises: InvalidError."""
    problem = "The cursor is none that this service gave."
    if len(text) > CURSOR_CHARS_MAX:
        raise InvalidError(problem)
    try:
        packed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        plain = zlib.decompressobj().decompress(packed, _PLAIN_BYTES_MAX)
        topic, from_ms, to_ms, tag, lanes = orjson.loads(plain)
        content = _Content(topic=topic, from_ms=from_ms, to_ms=to_ms, tag=tag, lanes=lanes)
        marks = [
            LaneMark(broker_name=name, queue_id=queue_id, low=low, high=high, step=step)
            for name, queue_id, low, high, step in content.lanes
        ]
    except (binascii.Error, zlib.error, ValidationError, ValueError, TypeError) as error:
        raise InvalidError(problem) from error
    return Search(content.topic, content.from_ms, content.to_ms, content.tag), marks


T = TypeVar("T")

PULLS_MAX: Final = 400
"""Of one part."""
PULLED_BYTES_MAX: Final = 64 * 1024 * 1024
PULLS_PER_STEP: Final = 8
"""A step that needs more is made smaller."""
STEP_MIN: Final = 4
STEP_PLAIN: Final = 32
STEP_TAGGED: Final = 256
STEP_MAX: Final = 4096
"""Where few messages have the tag, more are read at once."""
FOREVER_MS: Final = 2**62


@dataclass(slots=True)
class _Lane(Generic[T]):
    """`found`: what was read and not taken, newest last."""

    place: QueuePlace
    low: int
    high: int
    step: int
    found: list[tuple[int, int, T]] = field(default_factory=list)
    """(stored ms, queue offset, item)"""

    @property
    def needs_reading(self) -> bool:
        return not self.found and self.low < self.high

    def mark(self) -> LaneMark | None:
        high = self.found[-1][1] + 1 if self.found else self.high
        if high <= self.low:
            return None
        name, queue_id = self.place.broker_name, self.place.queue_id
        return LaneMark(broker_name=name, queue_id=queue_id, low=self.low, high=high, step=self.step)


@dataclass(slots=True)
class _Budget:
    pulls: int = PULLS_MAX
    pulled_bytes: int = PULLED_BYTES_MAX
    examined: int = 0

    @property
    def is_left(self) -> bool:
        return self.pulls > 0 and self.pulled_bytes > 0


@dataclass(frozen=True, slots=True)
class Part(Generic[T]):
    """What one part of a search found, the newest first."""

    items: list[T]
    cursor: str | None
    examined: int
    troubles: tuple[Trouble, ...]


class WindowReader:
    """Searches. `Make` turns a record into what the caller wants of it; bodies are not kept."""

    def __init__(
        self, gateway: Gateway, source: MessageSource, offsets: OffsetSource, places: Places
    ) -> None:
        self._gateway = gateway
        self._source = source
        self._offsets = offsets
        self._places = places

    async def begin(
        self,
        search: Search,
        limit: int,
        make: Callable[[Record, str], T],
        *,
        broker_name: str | None = None,
        queue_id: int | None = None,
    ) -> Part[T]:
        """The first part. Raises: NotFoundError, InvalidError, UnavailableError."""
        places = await self._places.queues_of(search.topic, broker_name, queue_id)
        lanes, troubles = await self.lanes(search, places)
        step = STEP_PLAIN if search.tag is None else STEP_TAGGED
        if search.tag is None and lanes:
            step = max(STEP_MIN, min(STEP_PLAIN, 2 * limit // len(lanes)))
        open_lanes = [_Lane[T](place, low, high, step) for place, low, high in lanes]
        return await self._read(search, open_lanes, limit, make, troubles)

    async def resume(self, topic: str, cursor: str, limit: int, make: Callable[[Record, str], T]) -> Part[T]:
        """The next part. Raises: as begin."""
        search, marks = parse_cursor(cursor)
        if search.topic != topic:
            raise InvalidError("The cursor is of another topic.")
        places = {(place.broker_name, place.queue_id): place for place in await self._places.queues_of(topic)}
        lanes = [
            _Lane[T](places[mark.broker_name, mark.queue_id], mark.low, mark.high, min(mark.step, STEP_MAX))
            for mark in marks
            if (mark.broker_name, mark.queue_id) in places
        ]
        return await self._read(search, lanes, limit, make, ())

    async def lanes(
        self, search: Search, places: Sequence[QueuePlace]
    ) -> tuple[list[tuple[QueuePlace, int, int]], tuple[Trouble, ...]]:
        """(queue, first offset, offset behind the last) of the queues that have something in the window.

        Raises: UnavailableError when no broker answers.
        """
        by_address: dict[str, list[QueuePlace]] = {}
        for place in places:
            by_address.setdefault(place.address, []).append(place)
        ends = await self._gateway.ask_each(by_address, lambda at: self._offsets.bounds(at, search.topic))
        if not ends.answers and ends.troubles:
            raise UnavailableError(f"No broker of {search.topic} gives an answer: {ends.troubles[0].problem}")
        whole: dict[QueuePlace, tuple[int, int]] = {}
        for address, rows in ends.answers.items():
            bounds = {key.queue_id: (row.min_offset, row.max_offset) for key, row in (rows or {}).items()}
            for place in by_address[address]:
                low, high = bounds.get(place.queue_id, (0, 0))
                if 0 <= low < high:
                    whole[place] = (low, high)
        narrowed = await self._gateway.ask_each(
            whole, lambda place: self._narrow(search, place, *whole[place])
        )
        lanes = [(place, low, high) for place, (low, high) in narrowed.answers.items() if low < high]
        return lanes, ends.troubles + narrowed.troubles

    async def _narrow(self, search: Search, place: QueuePlace, low: int, high: int) -> tuple[int, int]:
        """The offsets that can be in the window, and at most a few beside it: RocketMQ 4.9 names the nearest
        message for a time, before or behind it, so one more is taken at the end. Raises: AskError.
        """
        first, end = low, high
        if search.from_ms > 0:
            found = await self._offsets.by_time(place.address, search.topic, place.queue_id, search.from_ms)
            first = max(low, found)
        if search.to_ms < FOREVER_MS:
            found = await self._offsets.by_time(place.address, search.topic, place.queue_id, search.to_ms + 1)
            end = min(high, found + 1)
        return first, end

    async def _read(
        self,
        search: Search,
        lanes: list[_Lane[T]],
        limit: int,
        make: Callable[[Record, str], T],
        troubles: tuple[Trouble, ...],
    ) -> Part[T]:
        budget = _Budget()
        items: list[T] = []
        broken: dict[str, Trouble] = {}
        while len(items) < limit:
            unread = [lane for lane in lanes if lane.needs_reading and lane.place.address not in broken]
            if unread:
                if not budget.is_left:
                    break
                await self._read_steps(search, unread, make, budget, broken)
                continue
            newest = max(
                (lane for lane in lanes if lane.found), key=lambda lane: lane.found[-1][:2], default=None
            )
            if newest is None:
                break
            items.append(newest.found.pop()[2])
        left = [mark for lane in lanes if (mark := lane.mark()) is not None]
        return Part(items, format_cursor(search, left), budget.examined, (*troubles, *broken.values()))

    async def _read_steps(
        self,
        search: Search,
        lanes: list[_Lane[T]],
        make: Callable[[Record, str], T],
        budget: _Budget,
        broken: dict[str, Trouble],
    ) -> None:
        keys = range(len(lanes))
        done = await self._gateway.ask_each(
            keys, lambda key: self._read_step(search, lanes[key], make, budget)
        )
        broken.update({trouble.address: trouble for trouble in done.troubles})

    async def _read_step(
        self, search: Search, lane: _Lane[T], make: Callable[[Record, str], T], budget: _Budget
    ) -> None:
        """Reads the last `step` offsets of the lane, or makes the step smaller. Raises: AskError."""
        begin = max(lane.low, lane.high - lane.step)
        at, found = begin, list[tuple[int, int, T]]()
        place = lane.place
        for _ in range(PULLS_PER_STEP):
            if at >= lane.high or not budget.is_left:
                break
            pulled = await self._source.pull(
                place.address, search.topic, place.queue_id, at, lane.high - at, search.tag or "*"
            )
            budget.pulls -= 1
            budget.pulled_bytes -= pulled.size_bytes
            found += [
                (record.store_timestamp_ms, record.queue_offset, make(record, place.broker_name))
                for record in pulled.records
                if at <= record.queue_offset < lane.high and is_wanted(record, search)
            ]
            at = next_offset(at, pulled.next_offset, lane.high)
        if at < lane.high:
            lane.step = max(1, at - begin) if at > begin else lane.step
            return
        budget.examined += lane.high - begin
        lane.high = begin
        lane.found = found
        if len(found) * 8 < lane.step:
            lane.step = min(STEP_MAX, lane.step * 4)


def next_offset(at: int, found: int, end: int) -> int:
    """Where to continue: forward, whatever a broker answers; a queue that ends before is at its end."""
    return found if found > at else end


def is_wanted(record: Record, search: Search) -> bool:
    """Whether the record is in the window and has the tag; brokers compare hashes of tags."""
    if record.topic != search.topic or not search.from_ms <= record.store_timestamp_ms <= search.to_ms:
        return False
    return search.tag is None or get_property(record.properties, b"TAGS") == search.tag.encode()
