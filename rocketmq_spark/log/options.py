"""The options of `rocketmq-log`. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from rocketmq_spark.errors import OptionError
from rocketmq_spark.options import OptionReader

FORMATS: Final = ("auto", "dledger", "commitlog")
VIEWS: Final = ("messages", "entries")
ON_CORRUPT: Final = ("rows", "fail", "skip")
SPLIT_BYTES: Final = 64 * 1024 * 1024
SPLIT_BYTES_MIN: Final = 1024

KNOWN: Final = (
    "path",
    "format",
    "view",
    "corrupt",
    "includeSystem",
    "includeUncommitted",
    "includeHeaders",
    "decompress",
    "splitBytes",
    "minPartitions",
    "brokerName",
    "storageOptions",
    "pushFilters",
)


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What to read and how.

    split_bytes: log bytes per task, about. broker_name: for the column brokerName, which no file holds.
    """

    paths: tuple[str, ...]
    format: Literal["auto", "dledger", "commitlog"] = "auto"
    view: Literal["messages", "entries"] = "messages"
    corrupt: Literal["rows", "fail", "skip"] = "rows"
    include_system: bool = False
    include_uncommitted: bool = False
    include_headers: bool = False
    decompress: bool = True
    split_bytes: int = SPLIT_BYTES
    partitions_min: int = 1
    broker_name: str | None = None
    storage_options: Mapping[str, Any] | None = None
    push_filters: bool = False


def parse_log_options(options: Mapping[str, str]) -> LogOptions:
    """Read the option map. Raises OptionError."""
    reader = OptionReader(options, KNOWN, "rocketmq-log")
    return LogOptions(
        paths=split_paths(reader.required("path")),
        format=cast("Literal['auto', 'dledger', 'commitlog']", reader.choice("format", FORMATS, "auto")),
        view=cast("Literal['messages', 'entries']", reader.choice("view", VIEWS, "messages")),
        corrupt=cast("Literal['rows', 'fail', 'skip']", reader.choice("corrupt", ON_CORRUPT, "rows")),
        include_system=reader.boolean("includeSystem", False),
        include_uncommitted=reader.boolean("includeUncommitted", False),
        include_headers=reader.boolean("includeHeaders", False),
        decompress=reader.boolean("decompress", True),
        split_bytes=reader.integer("splitBytes", SPLIT_BYTES, SPLIT_BYTES_MIN) or SPLIT_BYTES,
        partitions_min=reader.integer("minPartitions", 1, 1) or 1,
        broker_name=reader.text("brokerName"),
        storage_options=_storage_options(reader.text("storageOptions")),
        push_filters=reader.boolean("pushFilters", False),
    )


def parse_format(name: str, text: str) -> Literal["auto", "dledger", "commitlog"]:
    """One of FORMATS. Raises OptionError naming the option."""
    if text not in FORMATS:
        raise OptionError(f"{name} is {text!r}, must be one of {', '.join(FORMATS)}")
    return cast("Literal['auto', 'dledger', 'commitlog']", text)


def split_paths(text: str) -> tuple[str, ...]:
    """One URL or pattern, several with commas, or a JSON list of them. Raises OptionError."""
    paths: object = None
    if text.lstrip().startswith('["'):
        try:
            paths = json.loads(text)
        except json.JSONDecodeError as error:
            raise OptionError(f"option path begins like a JSON list, but is none: {error}") from None
    else:
        paths = text.split(",")
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise OptionError("option path must be a path, several with commas, or a JSON list of texts")
    named = tuple(path.strip() for path in paths if path.strip())
    if not named:
        raise OptionError("option path names no path")
    return named


def _storage_options(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise OptionError(f"option storageOptions must be a JSON object: {error}") from None
    if not isinstance(found, dict):
        raise OptionError("option storageOptions must be a JSON object")
    return found
