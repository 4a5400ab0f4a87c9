"""A row of files that together are one long byte sequence, as found on a storage at one moment."""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from rocketmq_spark.log.storage import GoneError, Storage

NAME_DIGITS: Final = 20


@dataclass(frozen=True, slots=True)
class FileRow:
    """Files named by the 20-digit position of their first byte, in one folder."""

    folder: str
    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    file_bytes: int
    """The length of a whole file."""

    @property
    def begin(self) -> int:
        """The first position that there is a file for; 0 without files."""
        return self.starts[0] if self.starts else 0

    @property
    def end(self) -> int:
        """First position behind the last file."""
        return self.starts[-1] + self.sizes[-1] if self.starts else 0

    def file_of(self, position: int) -> int | None:
        """The number of the file that `position` belongs to, None when it is missing."""
        number = bisect_right(self.starts, position) - 1
        if number < 0 or position >= self.starts[number] + self.file_bytes:
            return None
        return number

    def file_end(self, position: int) -> int:
        """Where the file of `position` ends when it is whole, whether it is there or not."""
        number = bisect_right(self.starts, position) - 1
        if number < 0:
            return self.begin
        start = self.starts[number]
        behind = start + (position - start) // self.file_bytes * self.file_bytes + self.file_bytes
        return min(behind, self.starts[number + 1]) if number + 1 < len(self.starts) else behind

    def path_of(self, position: int) -> str:
        """The path of the file that holds `position` or should."""
        start = self.file_end(position) - self.file_bytes
        return f"{self.folder}/{max(start, 0):0{NAME_DIGITS}d}"

    def read(self, storage: Storage, position: int, size_bytes: int) -> bytes:
        """Bytes of one file from `position` on, fewer where the file ends.

        Raises GoneError when there is none or nothing of it there, OSError.
        """
        number = self.file_of(position)
        if number is None:
            raise GoneError(f"{self.path_of(position)} is not there")
        start = self.starts[number]
        # Object stores answer a range behind a file's end with an error.
        room = start + min(self.sizes[number], self.file_bytes) - position
        path = f"{self.folder}/{start:0{NAME_DIGITS}d}"
        data = storage.read(path, position - start, min(size_bytes, room))
        if not data and size_bytes > 0:
            raise GoneError(f"{path} ends before position {position}")
        return data


def file_row(folder: str, names: Mapping[str, int], file_bytes: int | None = None) -> FileRow:
    """The row that a folder's listing holds; other files in it do not count.

    Without `file_bytes` the shortest step from one file to the next is taken for it, or an only file's size.
    """
    starts = sorted(
        int(name) for name in names if len(name) == NAME_DIGITS and name.isdecimal() and names[name] >= 0
    )
    sizes = [names[f"{start:0{NAME_DIGITS}d}"] for start in starts]
    if file_bytes is None:
        steps = [behind - start for start, behind in pairwise(starts)]
        file_bytes = min(steps, default=max(sizes, default=0))
    return FileRow(folder, tuple(starts), tuple(sizes), max(file_bytes, 1))
