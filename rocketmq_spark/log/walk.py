"""Going through a range of a log, from one whole entry to the next, over damage too.

Every byte of a range is accounted for: it belongs to an entry that is yielded, to a blank, or to a `Damage`.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from commitlog.recovery import BLANK_STOP, MORE
from rocketmq_spark.log.discovery import Log
from rocketmq_spark.log.entries import Taken
from rocketmq_spark.log.storage import GoneError
from rocketmq_spark.log.stretch import UNKNOWN, Damage, LogRange, Status, Stretch

WINDOW_BYTES: Final = 8 * 1024 * 1024
SEARCH_BYTES: Final = 8 * 1024 * 1024
"""Behind damage whole entries are looked for in steps of this size."""
SEARCH_BYTES_MAX: Final = 64 * 1024 * 1024
"""Then the next file is looked at. Behind the log's end files are empty for a gigabyte."""


READS_AGAIN_MAX: Final = 3
READ_AGAIN_S: Final = 0.01


@dataclass(slots=True)
class Place:
    """Where a walk stands: the next entry expected; UNKNOWN accepts any."""

    position: int
    index: int
    term: int = 0


class Walk(ABC):
    """Goes through one range, once. Raises OSError of the storage."""

    def __init__(self, log: Log, wanted: LogRange, window_bytes: int = WINDOW_BYTES) -> None:
        self.log = log
        self.wanted = wanted
        self._window_bytes = window_bytes
        self._read_again_at = -1
        self._reads_left = 0

    def __iter__(self) -> Iterator[Stretch | Damage]:
        place = Place(self.wanted.first_position, self.wanted.first_index)
        yield from self._walk(place)
        last = self.wanted.last_index
        if last != UNKNOWN and UNKNOWN != place.index <= last:
            error = f"the log ends at position {place.position}, before entry {last}"
            yield Damage("missing", place.position, 0, error, place.index, last)

    def _walk(self, place: Place) -> Iterator[Stretch | Damage]:
        window_bytes = self._window_bytes
        while not self._is_done(place):
            limit = min(self.log.data.file_end(place.position), self.wanted.end_position)
            asked = min(window_bytes, limit - place.position)
            window_bytes = self._window_bytes
            try:
                data = self.log.read(place.position, asked)
            except GoneError as error:
                yield from self._over_damage(place, "missing", str(error))
                continue
            taken = self._step(place, data)
            if len(taken.starts):
                stretch = self._stretch(place, data, taken)
                self._advance(place, stretch)
                yield stretch
                if self._is_done(place):
                    return
            if taken.stop == MORE:
                left = len(data) - taken.size_bytes
                if len(data) < asked:
                    yield from self._over_damage(place, "missing", self._ends_early(place, left))
                elif place.position + max(taken.bytes_needed, 1) > limit:
                    yield from self._over_damage(place, "corrupt", self._overlong(place, limit))
                else:
                    window_bytes = max(self._window_bytes, taken.bytes_needed)
            elif taken.stop == BLANK_STOP:
                place.position = self.log.data.file_end(place.position)
            elif self.wanted.is_open and self._ends_here(place, data[taken.size_bytes :]):
                return
            elif self._may_be_being_written(place):
                continue
            else:
                yield from self._over_damage(place, "corrupt", taken.stop)

    def _may_be_being_written(self, place: Place) -> bool:
        """Whether to read once more: a running broker may have been in the middle of writing.

        It writes in order: when something stood whole behind this place, so does what is read here now.
        """
        if not self.wanted.is_open or place.position < self.wanted.synced_position:
            return False
        if place.position != self._read_again_at:
            self._read_again_at, self._reads_left = place.position, READS_AGAIN_MAX
        self._reads_left -= 1
        if self._reads_left < 0:
            return False
        time.sleep(READ_AGAIN_S)
        return True

    def _is_done(self, place: Place) -> bool:
        last = self.wanted.last_index
        return place.position >= self.wanted.end_position or (last != UNKNOWN and place.index > last)

    def _ends_early(self, place: Place, left: int) -> str:
        return f"{self.log.data.path_of(place.position)} ends at position {place.position + left}"

    def _overlong(self, place: Place, limit: int) -> str:
        return f"what begins at position {place.position} reaches over the next at position {limit}"

    def _ends_here(self, place: Place, rest: bytes) -> bool:
        """Whether the log ends here: nothing was written, as far as can be seen."""
        is_blank = not any(rest[: self.head_bytes])
        return is_blank and place.position >= self.wanted.synced_position and self._later(place) is None

    def _over_damage(self, place: Place, status: Status, error: str) -> Iterator[Damage]:
        """Tell of the damage that `place` stands at, and move on behind it."""
        behind = self._later(place)
        if behind is None:
            is_tail = self.wanted.is_open and place.position >= self.wanted.synced_position
            if is_tail and status == "missing":
                place.position = self.wanted.end_position
                return
            end = self.wanted.end_position
            behind = Place(end, UNKNOWN if self.wanted.last_index == UNKNOWN else self.wanted.last_index + 1)
            status = "torn" if is_tail else status
            if is_tail:
                end = min(end, self.log.data.file_end(place.position))
            yield _damage(place, Place(end, behind.index), status, error)
        elif place.index == UNKNOWN or behind.index != place.index:  # else a blank is damaged, and no entry
            yield _damage(place, behind, status, error)
        place.position, place.index, place.term = behind.position, behind.index, behind.term

    def _later(self, place: Place) -> Place | None:
        """The next whole entry behind `place` in the range, or None."""
        found = self._by_size(place) or self._by_index(place)
        if found is not None:
            return found
        end = self.wanted.end_position
        position = place.position + 1
        while position < end:
            file_end = min(self.log.data.file_end(position), end)
            found = self._search(position, file_end, place)
            if found is not None:
                return found
            position = self._next_file(file_end)
        return None

    def _next_file(self, position: int) -> int:
        """The start of the first file from `position` on; the range's end when there is none."""
        starts = [start for start in self.log.data.starts if start >= position]
        return starts[0] if starts else self.wanted.end_position

    def _search(self, position: int, end: int, place: Place) -> Place | None:
        search_end = min(end, position + SEARCH_BYTES_MAX)
        while position < search_end:
            try:
                data = self.log.read(position, min(SEARCH_BYTES, end - position))
            except GoneError:
                return None
            found = self._find(data, position, place)
            if found is not None and found.position < end:
                return found
            step = len(data) - self.overlap_bytes
            if step <= 0 or len(data) < SEARCH_BYTES:
                return None
            position += step
        return None

    head_bytes: int
    """How much of an entry tells whether anything was written."""
    overlap_bytes: int
    """How far an entry that begins in one step of a search may reach into the next."""

    @abstractmethod
    def _step(self, place: Place, data: bytes) -> Taken: ...

    @abstractmethod
    def _stretch(self, place: Place, data: bytes, taken: Taken) -> Stretch: ...

    @abstractmethod
    def _advance(self, place: Place, stretch: Stretch) -> None: ...

    @abstractmethod
    def _by_size(self, place: Place) -> Place | None: ...

    @abstractmethod
    def _by_index(self, place: Place) -> Place | None: ...

    @abstractmethod
    def _find(self, data: bytes, position: int, place: Place) -> Place | None: ...


def _damage(place: Place, behind: Place, status: Status, error: str) -> Damage:
    length = behind.position - place.position
    if place.index == UNKNOWN or behind.index == UNKNOWN or behind.index <= place.index:
        return Damage(status, place.position, length, error)
    return Damage(status, place.position, length, error, place.index, behind.index - 1)
