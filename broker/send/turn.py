"""The sends that are written to the log with one put, in order, and the answers to them.

An answer is built once for every message sent, so with as few steps as possible. A JSON answer is a template
filled in (only if the ext fields' values need no escaping; else the general encoder is used). Every send's
answer, an error's too, carries MSG_REGION and TRACE_ON: Java's client reads them without a check, and the C++
client crashes on a success without ext fields.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from broker.send.admission import Admitted
from broker.send.sequencing import Flight
from commitlog.log import PutResult
from commitlog.record import Message
from native import function
from remoting.command import (
    BINARY_HEADER,
    JSON_HEADER,
    OWN_LANGUAGE,
    OWN_VERSION,
    RESPONSE_FLAG,
    RemotingCommand,
    encode_command,
    success_response,
)
from remoting.connection import Connection
from remoting.headers.send import SendMessageRequestHeader, SendRequest

_two_words = struct.Struct(">II").pack
_make_native = function("_remoting", "SendAnswers")
_OPAQUE_AT = 8 + 5
"""In a binary frame: behind the two words, code, language and version."""
_FIELDS_AT = _OPAQUE_AT + 16
"""There: behind opaque, flag, and the sizes of remark and fields."""


@dataclass(slots=True)
class PlainRun:
    """Sends of one connection, one message each: those of `requests` from `first` to `end`."""

    connection: Connection
    requests: list[RemotingCommand]
    first: int
    end: int

    @property
    def message_count(self) -> int:
        return self.end - self.first

    def sends(self) -> Iterator[tuple[Connection, RemotingCommand]]:
        return ((self.connection, request) for request in self.requests[self.first : self.end])


@dataclass(slots=True)
class SingleSend:
    """One send, a batch perhaps."""

    connection: Connection
    request: RemotingCommand
    admitted: Admitted

    @property
    def message_count(self) -> int:
        return len(self.admitted.messages)

    def sends(self) -> Iterator[tuple[Connection, RemotingCommand]]:
        yield self.connection, self.request


@dataclass(slots=True)
class SequencedSend(SingleSend):
    """`repeats`: number of messages of the request that were in the log already; they are not among the
    admitted.
    """

    repeats: int


@dataclass(slots=True)
class Turn:
    """`messages` are those of all parts, in order; `body_bytes` those of their bodies; `flights` the appends
    of sequenced sends; `begun_s` and `laid_out_s` are moments of the performance counter.
    """

    parts: list[PlainRun | SingleSend] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    body_bytes: int = 0
    result: PutResult | None = None
    flights: list[Flight] = field(default_factory=list)
    begun_s: float = field(default_factory=perf_counter)
    laid_out_s: float = 0.0

    def add(self, part: "SingleSend") -> None:
        messages = part.admitted.messages
        self.parts.append(part)
        self.messages += messages
        self.body_bytes += sum(len(message.body) for message in messages)

    def sends(self) -> Iterator[tuple[Connection, RemotingCommand]]:
        return (send for part in self.parts for send in part.sends())


class SendAnswers:
    """Makes the answers of one broker. `store_host` begins every offsetMsgId."""

    def __init__(self, store_host: bytes, region_id: str, trace_on: bool) -> None:
        self._host_hex = store_host.hex().upper()
        self._trace = {"MSG_REGION": region_id, "TRACE_ON": "true" if trace_on else "false"}
        self._head = (
            f'{{"language":"{OWN_LANGUAGE}","version":{OWN_VERSION},"serializeTypeCurrentRPC":"JSON",'
            f'"code":0,"flag":{RESPONSE_FLAG},"extFields":{{"MSG_REGION":"{region_id}",'
            f'"TRACE_ON":"{self._trace["TRACE_ON"]}","msgId":"{self._host_hex}'
        )
        self._native: Any = None
        if _make_native is not None:
            binary = RemotingCommand(0, flag=RESPONSE_FLAG, ext_fields=self._trace)
            binary.serialize_type = BINARY_HEADER
            frame = encode_command(binary)
            parts = (self._head.encode(), frame[8:_OPAQUE_AT], frame[_FIELDS_AT:], self._host_hex.encode())
            self._native = _make_native(SendRequest, SendMessageRequestHeader, *parts)

    def successes(self, run: PlainRun, result: PutResult, first: int) -> tuple[bytes, int]:
        """The frames that answer a run whose first message is the result's number `first`, as one bytes
        object, and the number of frames: none for a oneway. Only the compiled module makes such runs.
        """
        answers: tuple[bytes, int] = self._native.render(
            run.requests, run.first, run.end, result.positions, result.queue_offsets, first
        )
        return answers

    def success(
        self,
        request: RemotingCommand,
        queue_id: int,
        unique_key: str,
        positions: Sequence[int],
        queue_offset: int,
        recall_handle: str = "",
    ) -> bytes:
        """The success frame with the ids (positions) of a message, or of each message of a batch;
        `queue_offset` is the first one's.
        """
        is_ordinary = len(positions) == 1 and not recall_handle and _is_plain(unique_key)
        if not is_ordinary or request.serialize_type != JSON_HEADER:
            return self._general(request, queue_id, unique_key, positions, queue_offset, recall_handle)
        header = (
            f'{self._head}{positions[0]:016X}","queueId":"{queue_id}","queueOffset":"{queue_offset}",'
            f'"transactionId":"{unique_key}"}},"opaque":{request.opaque}}}'
        ).encode()
        length = len(header)
        return _two_words(4 + length, length) + header

    def _general(
        self,
        request: RemotingCommand,
        queue_id: int,
        unique_key: str,
        positions: Sequence[int],
        queue_offset: int,
        recall_handle: str,
    ) -> bytes:
        ext = {
            **self._trace,
            "msgId": ",".join(f"{self._host_hex}{position:016X}" for position in positions),
            "queueId": str(queue_id),
            "queueOffset": str(queue_offset),
        }
        if unique_key:
            ext["transactionId"] = unique_key
        if recall_handle:
            ext["recallHandle"] = recall_handle
        return encode_command(success_response(request, ext))

    def sequenced(self, request: RemotingCommand, queue_offset: int, repeats: int) -> bytes:
        """The frame that ends a sequenced send: `repeats` of its messages, from the first on, were there
        already; `queue_offset` is that of the first one that was not, or -1.
        """
        places = {"queueOffset": str(queue_offset), "repeats": str(repeats)}
        return encode_command(success_response(request, {**self._trace, **places}))

    def error(
        self, request: RemotingCommand, code: int, remark: str, ext: Mapping[str, str] | None = None
    ) -> bytes:
        """The frame of a failure."""
        fields = {**self._trace, **(ext or {})}
        return encode_command(success_response(request, fields, remark=remark, code=code))


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isalnum()
