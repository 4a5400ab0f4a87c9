"""Frames that our own decoder reads, and answers found however reads cut them."""

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.errors import UserError
from ledgermq.load.cluster import count_records
from ledgermq.load.frames import AnswerReader, send_frame, slot_frames, take
from remoting.codes import RequestCode
from remoting.command import RemotingCommand, decode_command, encode_command, success_response
from remoting.headers.send import SendMessageRequestHeader


def answer(slot: int, code: int = 0, remark: str | None = None) -> bytes:
    request = RemotingCommand(RequestCode.SEND_MESSAGE_V2, opaque=slot)
    ext = {"queueId": "0", "queueOffset": "7", "note": '"code":0,'}
    return encode_command(success_response(request, ext, remark=remark, code=code))


def test_frame_is_a_send_as_the_broker_reads_it() -> None:
    frame = send_frame(("orders", 3), 5, b"body")
    command = decode_command(frame[4:])
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert (command.code, command.body) == (RequestCode.SEND_MESSAGE_V2, b"body")
    assert command.opaque == 5
    header = SendMessageRequestHeader.parse(command.ext_fields)
    assert (header.topic, header.queue_id) == ("orders", 3)


@pytest.mark.parametrize(("slots", "pipes"), [(1, 1), (3, 1), (2, 4), (50, 2)])
def test_slots_go_through_all_targets(slots: int, pipes: int) -> None:
    targets = [("t", queue) for queue in range(20)]
    seen: list[int] = []
    for pipe in range(pipes):
        frames = slot_frames(targets, slots, b"", first=pipe * slots, step=slots * pipes)
        for key in frames:
            sent = list(islice(frames[key], 20))
            found = {int(decode_command(frame[4:]).ext_fields["e"]) for frame in sent}
            assert {decode_command(frame[4:]).opaque for frame in sent} == {key}
            seen += found
    assert set(seen) == set(range(20)) or slots * pipes >= 20
    assert len(set(seen)) == 20


def test_take_joins_the_next_frame_of_each_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledgermq.load.frames.time.time_ns", lambda: 1_700_000_000_000_000_000)
    frames = slot_frames([("t", 0)], 3, b"x")
    keys = list(frames)
    assert take(frames, keys[:2]) == send_frame(("t", 0), 0, b"x") + send_frame(("t", 0), 1, b"x")


@given(st.data())
def test_answers_are_found_wherever_reads_cut_them(data: st.DataObject) -> None:
    codes = data.draw(st.lists(st.sampled_from([0, 0, 0, 14, 1]), min_size=1, max_size=12))
    stream = b"".join(answer(slot, code, "why" if code else None) for slot, code in enumerate(codes))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=10)))
    reader = AnswerReader()
    acknowledged: list[int] = []
    failed: list[tuple[int, int]] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found = reader.feed(stream[start:end])
        acknowledged += found.acknowledged
        failed += found.failed
    assert acknowledged == [slot for slot, code in enumerate(codes) if code == 0]
    assert failed == [(slot, code) for slot, code in enumerate(codes) if code]


def test_records_of_a_pull_are_counted_by_their_sizes() -> None:
    assert count_records(b"") == 0
    assert count_records((6).to_bytes(4, "big") + b"ab" + (4).to_bytes(4, "big")) == 2


@pytest.mark.parametrize("body", [b"\0\0\0\x09abcd", b"\0\0\0\0", b"\0\0\0\x05ab", b"\0\0"])
def test_records_that_do_not_fill_the_answer_are_an_error(body: bytes) -> None:
    with pytest.raises(UserError, match="do not fill it"):
        count_records(body)
