"""dledger.codec: every message survives the wire, and any other bytes raise PeerProtocolError."""

import os
import struct
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.codec import (
    HEADER_BYTES_MAX,
    INTEGER_MAX,
    TERM_STEP_MAX,
    TEXT_BYTES_MAX,
    FrameDecoder,
    Hello,
    Introduction,
    PeerProtocolError,
    Refused,
    Welcome,
    encode_frame,
    refuse_impossible,
    version_needed,
)
from dledger.core.membership import (
    MEMBERS_MAX,
    Configuration,
    ConfigurationEntry,
    Member,
    MemberRole,
)
from dledger.core.messages import (
    AppendRequest,
    AppendResponse,
    CompareRequest,
    CompareResponse,
    FetchResponse,
    HeartbeatRequest,
    MembershipNotice,
    Message,
    RepairRequest,
    TruncateRequest,
    VoteRequest,
    VoteResponse,
)
from dledger.core.types import EntryRange, ResponseCode
from tests.unit.dledger.message_strategies import MESSAGE_TYPES, messages

FRAME_BYTES_MAX = 4096
APPEND = AppendRequest(3, 7, 2, EntryRange(8, 9, 3, b"two entries"))
KIND_OF = {
    "Hello": 0,
    "VoteRequest": 1,
    "HeartbeatRequest": 3,
    "AppendRequest": 6,
    "AppendResponse": 7,
    "CompareResponse": 9,
    "FetchResponse": 16,
    "MembershipNotice": 20,
    "TruncateRequest with base": 21,
}
MEMBERS = (
    Member("n0", "10.0.0.1", 7, MemberRole.VOTER),
    Member("n3", "10.0.0.2", 8, MemberRole.JOINING, "n1"),
)
ENTRY = ConfigurationEntry(5, 2, Configuration(MEMBERS, 3, 1))
TRUNCATION = TruncateRequest(3, 7, 8, 2, 400, False, 9, 2)


def frame(message: Any) -> bytes:
    return b"".join(encode_frame(message))


def frame_of(header: bytes, data: bytes = b"") -> bytes:
    return struct.pack(">II", 4 + len(header) + len(data), len(header)) + header + data


def packed(*values: Any, data: bytes = b"") -> bytes:
    return frame_of(msgpack.packb(list(values)), data)


def decode(data: bytes) -> list[Any]:
    return list(FrameDecoder(FRAME_BYTES_MAX).feed(data))


def test_every_message_type_has_a_kind() -> None:
    assert all(isinstance(cls.__name__, str) for cls in MESSAGE_TYPES)
    assert len(MESSAGE_TYPES) == 21


@given(messages)
def test_message_round_trip(message: Any) -> None:
    assert decode(frame(message)) == [message]


@given(st.lists(messages, max_size=4), st.data())
def test_stream_cut_anywhere_decodes_the_same(sent: list[Any], data: st.DataObject) -> None:
    stream = b"".join(frame(message) for message in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    decoder = FrameDecoder(FRAME_BYTES_MAX)
    parts = [stream[start:end] for start, end in pairwise([0, *cuts, len(stream)])]
    assert [message for part in parts for message in decoder.feed(part)] == sent


def test_byte_by_byte_and_with_trailing_data() -> None:
    decoder = FrameDecoder(FRAME_BYTES_MAX)
    stream = frame(APPEND) + frame(APPEND)[:5]
    found = [message for byte in stream for message in decoder.feed(bytes([byte]))]
    assert found == [APPEND]
    assert decoder.feed(frame(APPEND)[5:]) == [APPEND]


def test_numbers_that_no_sound_node_sends_are_framed_as_all_others() -> None:
    """The compiled encoder leaves them to Python; the receiver refuses them."""
    response = AppendResponse(3, ResponseCode.SUCCESS, 0, -2, 0)
    request = AppendRequest(3, -2, 2, EntryRange(8, 9, 3, b"two entries"))
    assert frame(response) == packed(KIND_OF["AppendResponse"], 3, ResponseCode.SUCCESS.value, 0, -2, 0)
    assert frame(request) == packed(KIND_OF["AppendRequest"], 3, -2, 2, 8, 9, 3, data=b"two entries")
    for sent in (response, request):
        with pytest.raises(PeerProtocolError):
            decode(frame(sent))


@pytest.mark.parametrize("chunk_bytes", [1_000, 100_000, 256_000, 1 << 20])
def test_large_push_in_chunks_of_any_size_between_others(chunk_bytes: int) -> None:
    large = AppendRequest(4, 1, 3, EntryRange(7, 9, 4, os.urandom(1 << 20)))
    sent = [APPEND, large, large, APPEND]
    stream = b"".join(map(frame, sent))
    decoder = FrameDecoder(4 << 20)
    starts = range(0, len(stream), chunk_bytes)
    assert [message for at in starts for message in decoder.feed(stream[at : at + chunk_bytes])] == sent


def test_length_of_a_frame_in_parts_is_checked_when_it_has_arrived() -> None:
    decoder = FrameDecoder(FRAME_BYTES_MAX)
    assert decoder.feed(frame(APPEND) + b"\xff\xff") == [APPEND]
    with pytest.raises(PeerProtocolError, match="longer than"):
        decoder.feed(bytes(6))


def test_entry_bytes_are_not_copied_when_encoded() -> None:
    data = memoryview(bytearray(b"entries"))
    assert encode_frame(AppendRequest(1, 0, 0, EntryRange(0, 0, 1, data)))[1] is data


def test_frame_without_entries_is_one_buffer() -> None:
    assert len(encode_frame(HeartbeatRequest(1, 0))) == 1


@given(st.binary(max_size=200))
def test_garbage_is_decoded_or_refused(data: bytes) -> None:
    """The fuzz invariant: messages, nothing yet, or PeerProtocolError."""
    try:
        decode(data)
    except PeerProtocolError:
        return


@given(st.recursive(st.none() | st.booleans() | st.integers(-9, 99) | st.text(max_size=5), st.lists))
def test_any_msgpack_header_is_decoded_or_refused(header: Any) -> None:
    try:
        found = decode(frame_of(msgpack.packb(header), b"x"))
    except PeerProtocolError:
        return
    assert isinstance(found[0], AppendRequest | FetchResponse)


@given(messages, st.data())
def test_one_changed_byte_is_decoded_or_refused(message: Any, data: st.DataObject) -> None:
    changed = bytearray(frame(message))
    changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(changed))
    except PeerProtocolError:
        return


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (struct.pack(">II", FRAME_BYTES_MAX + 1, 1), "longer than 4096"),
        (struct.pack(">II", 10, HEADER_BYTES_MAX + 1), "header of"),
        (struct.pack(">II", 10, 7), "header of 7 bytes in a frame of 10"),
        (struct.pack(">II", 0, 0), "header of 0 bytes in a frame of 0"),
        (frame_of(b"\xc1"), "not msgpack"),
        (frame_of(b"\x91"), "not msgpack"),
        (frame_of(msgpack.packb(7)), "not an array"),
        (frame_of(msgpack.packb([])), "not an array"),
        (packed(99), "unknown kind"),
        (packed(-1), "unknown kind"),
        (packed(True), "unknown kind"),
        (packed("x"), "unknown kind"),
        (packed(KIND_OF["HeartbeatRequest"], 1), "1 fields in a HeartbeatRequest, not 2"),
        (packed(KIND_OF["HeartbeatRequest"], 1, 2, 3), "3 fields"),
        (packed(KIND_OF["HeartbeatRequest"], 1, "2"), "commit_index is not a number"),
        (packed(KIND_OF["HeartbeatRequest"], 1, True), "commit_index is not a number"),
        (packed(KIND_OF["HeartbeatRequest"], 1, -2), "commit_index is not a number"),
        (packed(KIND_OF["HeartbeatRequest"], 1, 1 << 63), "commit_index is not a number"),
        (packed(KIND_OF["HeartbeatRequest"], 1, 1.5), "commit_index is not a number"),
        (packed(KIND_OF["HeartbeatRequest"], 1, 2, data=b"x"), "entries in a HeartbeatRequest"),
        (packed(KIND_OF["VoteRequest"], 1, 2, 3, 4, 0, False), "is_pre_vote is not a boolean"),
        (packed(KIND_OF["CompareResponse"], 1, 999, 1, 1, 1, 1, 1, 1), "code is not a ResponseCode"),
        (packed(KIND_OF["Hello"], "g", "n" * (TEXT_BYTES_MAX + 1), 1, "a"), "node_id is not a text"),
        (packed(KIND_OF["Hello"], "g", b"n0", 1, "a"), "node_id is not a text"),
        (packed(KIND_OF["AppendRequest"]), "0 fields in a AppendRequest, not 6"),
        (packed(KIND_OF["AppendRequest"], 1, 2), "2 fields in a AppendRequest, not 6"),
        (packed(KIND_OF["AppendRequest"], 1, 2, 3, 5, 4, 1, data=b"x"), "entries 5..4"),
        (packed(KIND_OF["AppendRequest"], 1, 2, 3, -1, 4, 1, data=b"x"), "entries -1..4"),
        (packed(KIND_OF["AppendRequest"], 1, 2, 3, 4, 4, -1, data=b"x"), "of term -1"),
        (packed(KIND_OF["AppendRequest"], 1, 2, 3, 4, 4, 1), "in 0 bytes"),
        (packed(KIND_OF["AppendRequest"], 1, 2, 3, -1, -1, 0), "has no entries"),
        (packed(KIND_OF["FetchResponse"], 1, 200, -1, -1, 0, data=b"x"), "entries -1..-1 of term 0"),
        (packed(KIND_OF["FetchResponse"], 1, 200, 4, 5, 1), "in 0 bytes"),
        (packed(KIND_OF["TruncateRequest with base"], *range(1, 9)), "8 fields in a TruncateRequest, not 9"),
        *(
            (packed(KIND_OF["MembershipNotice"], 3, value), words)
            for value, words in (
                (7, "configuration is not an array of 5 values"),
                ([5, 2, 3, 1], "configuration is not an array of 5 values"),
                ([5, "2", 3, 1, []], "configuration is not a number"),
                ([5, -1, 3, 1, []], "configuration of term -1"),
                ([5, 2, -1, 1, []], "level -1"),
                ([5, 2, 3, -1, []], "generation -1"),
                ([5, 2, 3, 1, 7], "is not an array of at most 32 members"),
                ([5, 2, 3, 1, [["n0"]] * (MEMBERS_MAX + 1)], "is not an array of at most 32 members"),
                ([5, 2, 3, 1, []], "needs at least one voter"),
                ([5, 2, 3, 1, [["n0", "h", 1, "voter"]]], "a member is not an array of 5 values"),
                ([5, 2, 3, 1, [["n0", "h", "1", "voter", ""]]], "port is not a number"),
                ([5, 2, 3, 1, [["n0", "h", 65536, "voter", ""]]], "port 65536"),
                ([5, 2, 3, 1, [["n0", 7, 1, "voter", ""]]], "a member is not a text"),
                ([5, 2, 3, 1, [["n0", "h", 1, "king", ""]]], "of role 'king'"),
                ([5, 2, 3, 1, [["n0", "h", 1, "voter", "x" * 33]]], "that replaces"),
                ([5, 2, 3, 1, [["n0", "h", 1, "voter", ""]] * 2], "named twice"),
                ([5, 2, 3, 1, [["n0" * 99, "h", 1, "voter", ""]]], "member 'n0n0"),
            )
        ),
    ],
)
def test_wrong_bytes_are_named(data: bytes, words: str) -> None:
    with pytest.raises(PeerProtocolError, match=words):
        decode(data)


@pytest.mark.parametrize(
    "message",
    [
        AppendRequest(INTEGER_MAX + 1, 7, 2, EntryRange(8, 9, 3, b"two entries")),
        AppendResponse(INTEGER_MAX + 1, ResponseCode.SUCCESS, 8, 9, 9),
    ],
)
def test_number_of_more_than_63_bits_is_written_and_refused_by_the_reader(message: Any) -> None:
    """The compiled code hands such a message back to Python, which writes it as msgpack does."""
    with pytest.raises(PeerProtocolError, match="term is not a number"):
        decode(frame(message))


def test_too_long_frame_is_refused_before_it_arrives() -> None:
    """Eight bytes are enough: nothing is allocated for a length that is only claimed."""
    with pytest.raises(PeerProtocolError):
        decode(struct.pack(">II", 0xFFFFFFFF, 16))


def test_wire_form_is_fixed() -> None:
    """The bytes of versions 2 and 3: members that write others do not understand each other."""
    assert frame(Hello("g", "n0", 1, "a:1")).hex() == "000000100000000c" + "9500a167a26e3001a3613a31"
    assert frame(VoteRequest(3, 4, 9, 2, True, False)).hex() == "0000000c00000008" + "970103040902c3c2"
    response = CompareResponse(3, ResponseCode.SUCCESS, 9, 0, 9, 2, 9, 2)
    assert frame(response).hex() == "0000000f0000000b" + "990903ccc8090009020902"
    assert frame(RepairRequest(3, 7)).hex() == "0000000800000004" + "930d0307"
    assert (
        frame(FetchResponse(3, ResponseCode.NOT_LEADER, None)).hex()
        == "0000000d00000009" + "961003cd0194ffff00"
    )
    assert frame(APPEND).hex() == "0000001700000008" + "9706030702080903" + b"two entries".hex()
    assert (
        frame(Welcome(3, "n1", 2, 0, "r")).hex() == "0000000e0000000a" + "96" + "1103" + "a26e31" + "0200a172"
    )
    introduction = Introduction(3, "h", 7, 2, 0, "r")
    assert frame(introduction).hex() == "0000000e0000000a" + "97" + "1203" + "a168" + "070200" + "a172"
    assert frame(Refused("no")).hex() == "0000000900000005" + "9213a26e6f"


def test_configurations_on_the_wire() -> None:
    members = [["n0", "10.0.0.1", 7, "voter", ""], ["n3", "10.0.0.2", 8, "joining", "n1"]]
    entry = [5, 2, 3, 1, members]
    assert frame(MembershipNotice(4, ENTRY)) == packed(20, 4, entry)
    assert frame(TRUNCATION) == packed(10, 3, 7, 8, 2, 400, False, 9, 2)
    with_base = replace(TRUNCATION, base=ENTRY)
    assert frame(with_base) == packed(21, 3, 7, 8, 2, 400, False, 9, 2, entry)
    assert decode(frame(TRUNCATION) + frame(with_base)) == [TRUNCATION, with_base]


def test_the_largest_configuration_fits_into_a_header() -> None:
    members = [
        Member(
            f"{number:02}" + "\U0001f4a1" * 30,
            "\U0001f4a1" * 253,
            65535,
            MemberRole.LEARNER,
            "\U0001f4a1" * 32,
        )
        for number in range(MEMBERS_MAX - 1)
    ]
    entry = ConfigurationEntry(INTEGER_MAX, INTEGER_MAX, Configuration((*members, MEMBERS[0])))
    notice = MembershipNotice(INTEGER_MAX, entry)
    assert FrameDecoder(HEADER_BYTES_MAX).feed(frame(notice)) == [notice]


def test_a_message_says_which_version_it_needs() -> None:
    needed = [version_needed(each) for each in (APPEND, TRUNCATION, replace(TRUNCATION, base=ENTRY))]
    assert (needed, version_needed(MembershipNotice(4, ENTRY))) == ([2, 2, 3], 3)


def test_numbers_of_vote_results_are_known() -> None:
    with pytest.raises(PeerProtocolError, match="result is not a VoteResult"):
        decode(packed(2, 1, 1, False, 3))
    assert isinstance(decode(packed(2, 1, 1, False, 1))[0], VoteResponse)


@pytest.mark.parametrize(
    "message",
    [
        HeartbeatRequest(6 + TERM_STEP_MAX, 0),
        CompareRequest(5, 0, 3, 6),
        AppendRequest(5, 0, 6, EntryRange(1, 1, 5, b"x")),
        TruncateRequest(5, 0, 1, 6, 0, True, 3, 3),
        TruncateRequest(5, 0, 1, 3, 0, True, 3, 6),
        VoteRequest(5, 5, 3, 6, False, False),
        CompareResponse(5, ResponseCode.SUCCESS, 1, 0, 1, 6, 1, 1),
        MembershipNotice(1, ENTRY),
        replace(TRUNCATION, term=2, end_term=0, base=replace(ENTRY, term=3)),
    ],
)
def test_terms_that_no_member_reaches_are_refused(message: Message) -> None:
    with pytest.raises(PeerProtocolError, match="term"):
        refuse_impossible(message, 5 + TERM_STEP_MAX)
