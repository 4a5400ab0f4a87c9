"""Messages and answers of ordinary sends, compiled and in Python: the same, or left to Python."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.config import load_config
from broker.send.admission import Admission, Admitted
from broker.send.turn import PlainRun, SendAnswers
from broker.state.changes import PutTopic
from broker.state.groups import SubscriptionGroupConfig
from broker.state.state import ReplicatedState
from broker.state.topics import TopicConfig
from commitlog.log import PutResult, PutStatus
from commitlog.record import PROPERTIES_BYTES_MAX, Message, host_bytes
from remoting.command import RemotingCommand, answers_in
from remoting.command_reader import CommandReader
from remoting.headers.send import SendRequest, send_header
from remoting.unique_keys import UniqueKeys
from tests.support.fake_connection import FakeConnection
from tests.support.fake_log import FakeLog
from tests.support.send_bench import STAMP
from tests.unit.native.send_frames import (
    FRAMES,
    JAVA,
    KEY,
    PROPERTIES,
    frames,
    json_frame,
    json_send,
    properties,
)

STORE_HOST = host_bytes("10.0.0.1", 10911)
BORN_HOST = host_bytes("10.0.0.2", 50000)
ANSWERS = SendAnswers(STORE_HOST, "DefaultRegion", trace_on=True)
BODY_BYTES_MAX = 100
CONFIG = load_config(None, [f"maxMessageSize={BODY_BYTES_MAX}"])


TOPICS = {
    "t": TopicConfig("t", 4, 4),
    "other": TopicConfig("other", 2, 2, topic_filter_type="MULTI_TAG"),
    "%RETRY%g": TopicConfig("%RETRY%g", 4, 4),
}
"""Two that are open, one of them with several tags, and a retry topic."""


def state_with_topics() -> ReplicatedState:
    state = ReplicatedState(CONFIG, FakeLog(), lambda: 0)
    state._tables.topics.update(TOPICS)
    state._tables.groups["g"] = SubscriptionGroupConfig("g")
    return state


def admission(state: ReplicatedState | None = None) -> Admission:
    """With every topic met already."""
    keys = UniqueKeys(bytes(10), lambda: 0)
    made = Admission(CONFIG, state or state_with_topics(), STORE_HOST, keys, random.Random(0))
    assert made._plain is not None
    for name in TOPICS:
        made.admit(send_header(command(json_frame(json_send(JAVA | {"b": name})))), b"", BORN_HOST)
    return made


def command(frame: bytes) -> RemotingCommand:
    (found,) = CommandReader().feed(frame).commands
    return found


def admit_compiled(request: RemotingCommand) -> Message | None:
    messages: list[Message] = []
    count, body_bytes = admission().admit_plain([request], 0, 1, BORN_HOST, messages)
    assert count == len(messages)
    assert body_bytes == sum(len(message.body) for message in messages)
    return messages[0] if messages else None


def agree(request: RemotingCommand) -> bool:
    """Whether the compiled version took it, after a look at what Python makes of it."""
    message = admit_compiled(request)
    if message is None:
        return False
    admitted = admission().admit(send_header(request), request.body, BORN_HOST)
    assert isinstance(admitted, Admitted)
    assert admitted.messages == [message]
    assert repr(admitted.messages) == repr([message]), "a field has another type"
    result = PutResult(PutStatus.PUT_OK, [0, 2**62 + 5], [0, 2**40], 0)
    run = PlainRun(FakeConnection().as_connection, [request], 0, 1)
    expected = ANSWERS.success(request, admitted.queue_id, admitted.unique_key, result.positions[1:], 2**40)
    is_oneway = request.is_oneway
    assert ANSWERS.successes(run, result, 1) == ((b"", 0) if is_oneway else (expected, 1))
    return True


@pytest.mark.parametrize("frame", FRAMES)
def test_sends_of_stock_clients_are_admitted(frame: bytes) -> None:
    request = command(frame)
    is_plain = isinstance(request, SendRequest) and not request.header.is_batch and len(request.body) < 100
    assert agree(request) == is_plain


@given(frames())
def test_kindred_sends(frame: bytes) -> None:
    for request in CommandReader().feed(frame).commands:
        if isinstance(request, SendRequest):
            agree(request)


@given(properties, st.sampled_from([*TOPICS, "unknown"]), st.integers(0, 0x800), st.integers(0, 101))
@example(PROPERTIES, "other", 0x701, 100)
def test_any_properties(text: str, topic: str, sys_flag: int, body_bytes: int) -> None:
    ext = JAVA | {"i": text, "b": topic, "f": str(sys_flag)}
    agree(command(json_frame(json_send(ext), bytes(body_bytes))))


def test_what_has_a_rule_is_left_to_python() -> None:
    own = ("CLUSTER\x01c\x02", "MSG_REGION\x01r\x02", "TRACE_ON\x01false\x02")
    for words in ("DELAY\x013\x02", "TRAN_MSG\x01true\x02", *own, "TIMER_DELAY_MS\x015\x02"):
        for text in (words + PROPERTIES, PROPERTIES + words, "KEYS\x01" + words + PROPERTIES):
            assert not agree(command(json_frame(json_send(JAVA | {"i": text}))))
    for change in ({"m": "true"}, {"b": "%RETRY%g"}, {"b": "unknown"}, {"e": "4"}, {"f": "4"}, {"i": ""}):
        assert not agree(command(json_frame(json_send(JAVA | change))))
    assert not agree(command(json_frame(json_send(JAVA), bytes(101))))


def test_properties_at_their_bound() -> None:
    room = PROPERTIES_BYTES_MAX - len(PROPERTIES) - len("KEYS\x01\x02") - len(STAMP)
    for more in (-1, 0, 1):
        text = f"{PROPERTIES}KEYS\x01{'k' * (room + more)}\x02"
        for written in (text, text[:-1]):
            assert agree(command(json_frame(json_send(JAVA | {"i": written})))) == (more <= 0)


async def test_a_run_ends_where_python_has_to_decide() -> None:
    plain = command(json_frame(json_send(JAVA)))
    delayed = command(json_frame(json_send(JAVA | {"i": "DELAY\x013\x02" + PROPERTIES})))
    requests = [plain, plain, delayed, plain]
    state = state_with_topics()
    state.follow_log()
    taken = admission(state)
    assert taken.admit_plain(requests, 0, 9, BORN_HOST, []) == (2, 8)
    assert taken.admit_plain(requests, 0, 1, BORN_HOST, []) == (1, 4)
    assert taken.admit_plain(requests, 2, 9, BORN_HOST, []) == (0, 0)
    assert taken.admit_plain(requests, 3, 9, BORN_HOST, []) == (1, 4)
    assert taken.admit_plain(requests, 4, 9, BORN_HOST, []) == (0, 0)
    assert taken.admit_plain(requests, 0, 0, BORN_HOST, []) == (0, 0)
    assert await state.propose(PutTopic(TopicConfig("t", 4, 4))) is PutStatus.PUT_OK
    assert taken.admit_plain(requests, 0, 9, BORN_HOST, []) == (0, 0)


def test_answers_of_a_run_come_in_one_piece_without_those_nobody_wants() -> None:
    sends = [json_frame(json_send(JAVA, opaque=n, flag=2 if n == 1 else 0)) for n in range(400)]
    requests: list[RemotingCommand] = CommandReader().feed(b"".join(sends)).commands
    result = PutResult(PutStatus.PUT_OK, list(range(1, 500)), list(range(500, 999)), 0)
    run = PlainRun(FakeConnection().as_connection, requests, 0, 400)
    frames, count = ANSWERS.successes(run, result, 3)
    assert count == 399
    wanted = [n for n in range(400) if n != 1]
    each = [ANSWERS.success(requests[n], 1, KEY, [4 + n], 503 + n) for n in wanted]
    assert frames == b"".join(each)
    assert list(answers_in(frames)) == list(zip(wanted, map(len, each), strict=True))


def test_wrong_arguments_are_refused() -> None:
    request = command(json_frame(json_send(JAVA)))
    run = PlainRun(FakeConnection().as_connection, [request], 0, 1)
    empty = PutResult(PutStatus.PUT_OK, [], [], 0)
    with pytest.raises(ValueError, match="not so many"):
        ANSWERS.successes(run, empty, 0)
    result = PutResult(PutStatus.PUT_OK, [1], [1], 0)
    for first, end in ((-1, 0), (1, 0), (0, 2)):
        with pytest.raises(ValueError, match="not so many"):
            ANSWERS.successes(PlainRun(run.connection, run.requests, first, end), result, 0)
    with pytest.raises(TypeError, match="no plain send"):
        ANSWERS.successes(PlainRun(run.connection, [RemotingCommand(310)], 0, 1), result, 0)
    with pytest.raises(OverflowError):
        ANSWERS.successes(run, PutResult(PutStatus.PUT_OK, [2**64], [1], 0), 0)
    with pytest.raises(TypeError):
        admission().admit_plain((request,), 0, 1, BORN_HOST, [])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no request"):
        admission().admit_plain([request], -1, 1, BORN_HOST, [])
    request.header = None  # type: ignore[attr-defined]
    assert admit_compiled(request) is None
    del request.header  # type: ignore[attr-defined]
    assert admit_compiled(request) is None
