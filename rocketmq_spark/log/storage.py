"""The files of a store on any file system that fsspec knows: single ones, and rows of files that together are
one long byte sequence.

Local files are read with `pread`: if they were mapped, a broker that truncates one would kill the reading
process. Others are read one range at a time, which object stores answer without a request for the file's
size.
"""

import os
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any, Final

import fsspec
from fsspec.implementations.local import LocalFileSystem

DESCRIPTORS_MAX: Final = 64
"""Maximum of open files of one `Storage`; at this number all are closed."""


class GoneError(Exception):
    """A file that existed when the read was planned is missing now, or shorter."""


class Storage:
    """The file system of one URL. Can be sent to another process, which opens its own descriptors."""

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None = None) -> None:
        self._url = url
        self._storage_options = dict(storage_options or {})
        self._fds: dict[str, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self._url, "storage_options": self._storage_options}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(state["url"], state["storage_options"])  # type: ignore[misc]

    @cached_property
    def _fs_and_path(self) -> tuple[Any, str]:
        fs, path = fsspec.core.url_to_fs(self._url, use_listings_cache=False, **self._storage_options)
        return fs, str(path)

    @property
    def root(self) -> str:
        """The URL's path on its file system."""
        return self._fs_and_path[1].rstrip("/") or "/"

    @cached_property
    def is_local(self) -> bool:
        """Whether the files are this machine's own."""
        return isinstance(self._fs_and_path[0], LocalFileSystem)

    def glob(self) -> list[str]:
        """The folders that the URL's pattern names, sorted; the URL's own path when it is no pattern."""
        fs, root = self._fs_and_path[0], self.root
        if not any(mark in root for mark in "*?["):
            return [root] if fs.exists(root) else []
        return sorted(str(path) for path in fs.glob(root))

    def list(self, folder: str) -> dict[str, int]:
        """The sizes in bytes of what is in a folder, by name, folders as -1; empty when there is none."""
        fs = self._fs_and_path[0]
        folder = self._named(folder)
        try:
            fs.invalidate_cache(folder)
            found = fs.ls(folder, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        return {
            PurePosixPath(str(info["name"])).name: -1 if info["type"] == "directory" else int(info["size"])
            for info in found
            if str(info["name"]).rstrip("/") != folder.rstrip("/")
        }

    def read(self, path: str, start: int, size_bytes: int) -> bytes:
        """The bytes of a file from `start` on, fewer where it ends. Raises GoneError, OSError."""
        if size_bytes <= 0:
            return b""
        path = self._named(path)
        try:
            if self.is_local:
                return _pread(self._descriptor(path), start, size_bytes)
            return bytes(self._fs_and_path[0].cat_file(path, start=start, end=start + size_bytes))
        except FileNotFoundError as error:
            raise GoneError(f"{path} is not there") from error

    def read_small(self, path: str, size_bytes_max: int = 1 << 24) -> bytes | None:
        """A small file's content, or None when there is none."""
        path = self._named(path)
        try:
            if self.is_local:
                # A small file is replaced as a whole: an open descriptor may be of the old one.
                fd = os.open(path, os.O_RDONLY)
                try:
                    return _pread(fd, 0, size_bytes_max)
                finally:
                    os.close(fd)
            return bytes(self._fs_and_path[0].cat_file(path)[:size_bytes_max])
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    def _named(self, path: str) -> str:
        """A path as its file system names it. A path that is built from the name of the root may begin with a
        slash too many: in a zip file no path begins with one. If the path of the URL begins with a slash, all
        paths keep it: some file systems leave it out in the name of their root (SMB, WebHDFS).
        """
        if path and not path.startswith("/"):
            return path
        fs, own = self._fs_and_path
        return ("/" if own.startswith("/") else str(fs.root_marker)) + path.lstrip("/")

    def close(self) -> None:
        """Close all open files; a read opens them again."""
        while self._fds:
            os.close(self._fds.popitem()[1])

    def _descriptor(self, path: str) -> int:
        fd = self._fds.get(path)
        if fd is None:
            if len(self._fds) >= DESCRIPTORS_MAX:
                self.close()
            fd = self._fds[path] = os.open(path, os.O_RDONLY)
        return fd


def _pread(fd: int, start: int, size_bytes: int) -> bytes:
    data = os.pread(fd, size_bytes, start)
    if len(data) == size_bytes:
        return data
    parts = [data]
    got = len(data)
    while data and got < size_bytes:
        data = os.pread(fd, size_bytes - got, start + got)
        parts.append(data)
        got += len(data)
    return b"".join(parts)


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

        Raises GoneError when the file is missing or ends before `position`; OSError.
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

    Without `file_bytes` it is the shortest distance between two files, or the size of a single one.
    """
    starts = sorted(
        int(name) for name in names if len(name) == NAME_DIGITS and name.isdecimal() and names[name] >= 0
    )
    sizes = [names[f"{start:0{NAME_DIGITS}d}"] for start in starts]
    if file_bytes is None:
        steps = [behind - start for start, behind in pairwise(starts)]
        file_bytes = min(steps, default=max(sizes, default=0))
    return FileRow(folder, tuple(starts), tuple(sizes), max(file_bytes, 1))
