"""The data files of a node's log as one row of bytes, to hold two replicas against each other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

NAME_DIGITS = 20
CHUNK_BYTES = 1 << 20


def data_files(node: Path) -> list[Path]:
    """The log's data files below a node's folder, in log order: each is named by its first position."""
    found = [
        path
        for path in node.rglob("data/*")
        if path.is_file() and path.name.isdecimal() and len(path.name) == NAME_DIGITS
    ]
    assert found, f"no data files below {node}"
    return sorted(found, key=lambda path: path.name)


def chunks(node: Path, end: int) -> Iterator[tuple[int, bytes]]:
    """The bytes before position `end`, as (position, bytes) in order."""
    for path in data_files(node):
        position = int(path.name)
        with path.open("rb") as file:
            while position < end and (data := file.read(min(CHUNK_BYTES, end - position))):
                yield position, data
                position += len(data)


def first_difference(one: Path, other: Path, end: int) -> str | None:
    """What differs first between two nodes' logs before position `end`, None when they are the same bytes."""
    assert end > 0, "of two logs nothing is compared"
    seen = 0
    for (position, data), (other_position, other_data) in zip(
        chunks(one, end), chunks(other, end), strict=True
    ):
        if position != other_position:
            return f"{one.name} has position {position} where {other.name} has {other_position}"
        if data != other_data:
            at = next(i for i, (a, b) in enumerate(zip(data, other_data, strict=False)) if a != b)
            return f"{one.name} and {other.name} differ at position {position + at}"
        seen = position + len(data)
    return None if seen == end else f"{one.name} and {other.name} end at {seen}, before position {end}"
