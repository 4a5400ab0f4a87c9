from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, Self, TypeAlias

Buffer: TypeAlias = bytes | memoryview
VERSION: Final[int]

def take_units(
    units: bytes, codes: AbstractSet[int] | None, most: int, room: int, taken: int, /
) -> tuple[bytes, int, int, int, bool] | None: ...
def spans_of(units: bytes, gap: int, /) -> tuple[int, int, list[tuple[int, int]] | None] | None: ...
def gather_records(units: bytes, parts: Sequence[tuple[int, Buffer]], is_cold: bool, /) -> bytes | None: ...
def is_plain_request(fields: list[tuple[str, str]], /) -> bool: ...

class FieldReader:
    def __new__(cls, code_lengths: bytes, fixed: tuple[tuple[str, str], ...], /) -> Self: ...
    def read(
        self,
        block: bytes,
        entries: list[tuple[str, str]],
        table_bytes: int,
        table_bytes_max: int,
        list_bytes_max: int,
        /,
    ) -> tuple[list[tuple[str, str]] | None, int] | None: ...

class FrameReader:
    def __new__(
        cls,
        command: type,
        send: type,
        header: type,
        languages: tuple[str, ...],
        other_language: str,
        frame_bytes_max: int,
        header_bytes_max: int,
        large_bytes: int,
        /,
    ) -> Self: ...
    def read(
        self, data: bytes, start: int, /
    ) -> tuple[list[Any], int, int, int, int, bool, list[tuple[int, int]] | None] | None: ...

class Poller:  # None where the system has no epoll
    def __new__(cls, reader: FrameReader, events_max: int, /) -> Self: ...
    def add(self, fd: int, connection: object, is_partial: bool, /) -> None: ...
    def remove(self, fd: int, connection: object, /) -> None: ...
    def pause(self, fd: int, connection: object, is_paused: bool, /) -> None: ...
    def expect(self, fd: int, connection: object, is_partial: bool, /) -> None: ...
    def send(self, fd: int, connection: object, parts: list[bytes], /) -> int: ...
    def collect(self) -> list[tuple[Any, list[Any] | bytes | None, int, int]]: ...
    def fileno(self) -> int: ...
    def close(self) -> None: ...

class PlainSends:
    def __new__(
        cls,
        send: type,
        header: type,
        message: type,
        store_host: bytes,
        suffix: bytes,
        body_bytes_max: int,
        properties_bytes_max: int,
        plain_sys_flags: int,
        /,
    ) -> Self: ...
    def admit(
        self,
        requests: list[Any],
        first: int,
        most: int,
        open_topics: dict[str, tuple[int, int, int, bool]],
        born_host: bytes,
        messages: list[Any],
        /,
    ) -> tuple[int, int]: ...

class SendAnswers:
    def __new__(
        cls,
        send: type,
        header: type,
        json_head: bytes,
        binary_head: bytes,
        binary_fields: bytes,
        host_hex: bytes,
        /,
    ) -> Self: ...
    def render(
        self,
        requests: list[Any],
        first: int,
        end: int,
        positions: list[int],
        queue_offsets: list[int],
        first_result: int,
        /,
    ) -> tuple[bytes, int]: ...
