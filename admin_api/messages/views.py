"""Message records as operators see them: a short form in lists, a full one alone. Pure."""

import base64
import binascii
import ipaddress
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from pydantic import Field

from admin_api.errors import InvalidError
from admin_api.schema import Partial, Schema
from remoting.message_body import BodyError, compression_of, unpack_beginning, unpack_body
from remoting.record import Record, offset_msg_id, parse_properties

BODY_SHOWN_BYTES: int = 64 * 1024
BODY_SHOWN_BYTES_MAX: int = 1024 * 1024
PREVIEW_CHARS: int = 200


class BodyFormat(StrEnum):
    """How a body is shown. AUTO: JSON laid out, text if it is UTF-8 without control characters, or hex."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"
    HEX = "hex"
    BASE64 = "base64"


class BodyView(Schema):
    """A body, or as much of it as was asked for."""

    format: BodyFormat = Field(description="how `content` is written; never auto")
    content: str | None = Field(description="null when the body cannot be unpacked")
    body_bytes: int | None = Field(description="as its producer made it; null when it cannot be unpacked")
    stored_bytes: int = Field(description="as it is in the log, perhaps compressed")
    compression: str | None = Field(default=None, description="zlib, lz4 or zstd; null: none")
    is_text: bool | None = Field(description="whether it is UTF-8")
    is_body_cut: bool = Field(description="`content` is only the beginning")
    problem: str | None = Field(default=None, description="why it is not shown, or not as asked")


class MessageSummary(Schema):
    """One message of a list."""

    id: str = Field(description="offset message id: its broker and its position there")
    unique_key: str | None = Field(description="the id its client gave it; null: none")
    topic: str
    broker_name: str | None
    queue_id: int
    queue_offset: int
    tags: str | None = None
    keys: list[str] = Field(default=[])
    born_at_ms: int = Field(description="Unix time in ms, by its producer's clock")
    stored_at_ms: int = Field(description="Unix time in ms, by its broker's clock")
    reconsume_times: int = 0
    stored_bytes: int = Field(description="of the body, perhaps compressed")
    preview: str | None = Field(default=None, description="the beginning of the body; null: no text")


class MessageWindow(Partial):
    """Messages of a topic with a key, or a part of those between two times, and where to go on."""

    items: list[MessageSummary]
    next_cursor: str | None = Field(description="for the next part; null: there is no more")
    examined: int | None = Field(description="messages read for this part; null: found by an index")


class MessageView(MessageSummary):
    """One message, whole."""

    position: int = Field(description="byte of the log where its record begins (physical offset)")
    born_host: str
    store_host: str
    flag: int
    sys_flag: int
    transaction: str | None = Field(default=None, description="prepared, commit or rollback; null: none")
    prepared_transaction_offset: int
    body_crc: int
    is_crc_right: bool = Field(description="whether the body is what its checksum says")
    properties: dict[str, str]
    body: BodyView
    copies: list[MessageSummary] = Field(
        default=[], description="other messages of the topic with the same client's id"
    )


PLAIN_BYTES_MAX: Final = 16 * 1024 * 1024
"""Larger compressed bodies are not decompressed. A broker accepts 4 MiB at most unless configured so."""
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
"""Of a text that people read there are none."""
_ID_CHARS: Final = (32, 56)
_TRANSACTION: Final = {4: "prepared", 8: "commit", 12: "rollback"}


@dataclass(frozen=True, slots=True)
class OffsetId:
    """An offset message id taken apart."""

    address: str
    position: int


def parse_offset_id(text: str) -> OffsetId | None:
    """None when it is none; a client's id may resemble one."""
    if len(text) not in _ID_CHARS:
        return None
    try:
        raw = binascii.unhexlify(text)
    except (binascii.Error, ValueError):
        return None
    position = int.from_bytes(raw[-8:], "big", signed=True)
    address = host_text(raw[:-8])
    return None if position < 0 or address.endswith(":0") else OffsetId(address, position)


def id_of(record: Record) -> str:
    return offset_msg_id(record.store_host, record.physical_offset)


def host_text(host: bytes) -> str:
    """`address:port` of a host field."""
    port = int.from_bytes(host[-4:], "big")
    address = ipaddress.ip_address(host[:-4])
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def summarize(record: Record, broker_name: str | None) -> MessageSummary:
    return MessageSummary(**_summary(record, broker_name, parse_properties(record.properties)))


def view(
    record: Record,
    broker_name: str | None,
    body_format: BodyFormat,
    shown_bytes: int,
    copies: list[MessageSummary],
) -> MessageView:
    """The whole message, with the first `shown_bytes` of its body."""
    properties = parse_properties(record.properties)
    return MessageView(
        **_summary(record, broker_name, properties),
        position=record.physical_offset,
        born_host=host_text(record.born_host),
        store_host=host_text(record.store_host),
        flag=record.flag,
        sys_flag=record.sys_flag,
        transaction=_TRANSACTION.get(record.sys_flag & 12),
        prepared_transaction_offset=record.prepared_transaction_offset,
        body_crc=record.body_crc,
        is_crc_right=binascii.crc32(record.body) & 0x7FFFFFFF == record.body_crc,
        properties=properties,
        body=show_body(record, body_format, shown_bytes),
        copies=copies,
    )


def _summary(record: Record, broker_name: str | None, properties: Mapping[str, str]) -> dict[str, Any]:
    return {
        "id": id_of(record),
        "unique_key": properties.get("UNIQ_KEY"),
        "topic": record.topic,
        "broker_name": broker_name,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "tags": properties.get("TAGS"),
        "keys": properties.get("KEYS", "").split(),
        "born_at_ms": record.born_timestamp_ms,
        "stored_at_ms": record.store_timestamp_ms,
        "reconsume_times": record.reconsume_times,
        "stored_bytes": len(record.body),
        "preview": _preview(record),
    }


def _preview(record: Record) -> str | None:
    try:
        beginning = unpack_beginning(record.body, record.sys_flag, PREVIEW_CHARS * 4)
    except BodyError:
        return None
    text = _text(beginning, is_cut=len(beginning) == PREVIEW_CHARS * 4)
    return None if text is None or _CONTROL.search(beginning) else text[:PREVIEW_CHARS]


def plain_body(record: Record) -> bytes:
    """The body as its producer made it. Raises: InvalidError when it cannot be unpacked."""
    try:
        return unpack_body(record.body, record.sys_flag, PLAIN_BYTES_MAX)
    except BodyError as error:
        raise InvalidError(f"the body of {id_of(record)} is not to be had: {error}") from error


def show_body(record: Record, body_format: BodyFormat, shown_bytes: int) -> BodyView:
    """What is asked for where it can be; else hex, and why."""
    compression = compression_of(record.sys_flag)
    try:
        plain = unpack_body(record.body, record.sys_flag, PLAIN_BYTES_MAX)
    except BodyError as error:
        return BodyView(
            format=BodyFormat.HEX,
            content=None,
            body_bytes=None,
            stored_bytes=len(record.body),
            compression=compression,
            is_text=None,
            is_body_cut=True,
            problem=str(error),
        )
    is_text = _text(plain, is_cut=False) is not None
    shown = _render(plain, body_format, shown_bytes, is_text=is_text)
    return BodyView(
        format=shown.format,
        content=shown.content,
        body_bytes=len(plain),
        stored_bytes=len(record.body),
        compression=compression,
        is_text=is_text,
        is_body_cut=len(plain) > shown_bytes,
        problem=shown.problem,
    )


@dataclass(frozen=True, slots=True)
class _Shown:
    format: BodyFormat
    content: str
    problem: str | None = None


def _render(plain: bytes, wanted: BodyFormat, shown_bytes: int, *, is_text: bool) -> _Shown:
    beginning = plain[:shown_bytes]
    is_cut = len(plain) > shown_bytes
    if wanted is BodyFormat.BASE64:
        return _Shown(wanted, base64.b64encode(beginning).decode())
    problem = None
    if wanted in (BodyFormat.JSON, BodyFormat.AUTO):
        # A beginning of JSON is none, so one that is cut is shown as it is.
        laid_out = None if is_cut else _laid_out(plain)
        if laid_out is not None:
            return _Shown(BodyFormat.JSON, laid_out)
        if wanted is BodyFormat.JSON:
            problem = "only a whole body can be laid out" if is_cut else "it is no JSON"
    is_readable = wanted is not BodyFormat.AUTO or not _CONTROL.search(beginning)
    if wanted is not BodyFormat.HEX and is_text and is_readable:
        return _Shown(BodyFormat.TEXT, _text(beginning, is_cut=is_cut) or "", problem)
    if wanted is BodyFormat.TEXT:
        problem = "it is not UTF-8"
    return _Shown(BodyFormat.HEX, beginning.hex(), problem)


def _laid_out(plain: bytes) -> str | None:
    """None when it is no JSON object or array; a lone number or word is better left as text."""
    if not plain.lstrip().startswith((b"{", b"[")):
        return None
    try:
        # Not orjson: it makes floats of integers beyond 64 bits.
        return json.dumps(json.loads(plain), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None


def _text(data: bytes, *, is_cut: bool) -> str | None:
    """None when it is not UTF-8; a character that the cut went through is left out."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if is_cut and len(data) - error.start < 4 and error.reason == "unexpected end of data":
            return data[: error.start].decode()
        return None
