"""Reports of the stock clients' drivers become one history, and a fault in it shows."""

from __future__ import annotations

from typing import Any

from tests.histories.checker import check
from tests.histories.operations import Drain, Outcome, Poll, Queue, Send
from tests.histories.stock_clients import merged, polls_of, sends_of
from tests.histories.words import Word
from tests.integration.messages import Sample

RUN = (100, 200)
JAVA = [
    {"number": 0, "status": "SEND_OK", "queue": 0, "offset": 0, "at_ms": 110},
    {"number": 1, "status": "ERROR", "error": "time-out"},
    {"number": 2, "status": "SEND_OK", "queue": 0, "offset": 1, "at_ms": 130},
    {"number": 3, "status": "FLUSH_DISK_TIMEOUT", "queue": 0, "offset": 2, "at_ms": 140},
]


def body(number: int, kind: str = "stream") -> str:
    return Sample(kind, number).body


def consumed(queue: int, offset: int, text: str, **more: Any) -> dict[str, Any]:
    return {"queue": queue, "offset": offset, "body": text, "topic": "T", "reconsume_times": 0, **more}


def test_stream_of_the_java_driver() -> None:
    sends = list(sends_of(JAVA, "java", "T", RUN, tries=1))
    assert [(send.outcome, send.invoked, send.completed, send.offsets) for send in sends] == [
        (Outcome.OK, 100, 110, (0,)),
        (Outcome.INFO, 110, None, ()),
        (Outcome.OK, 110, 130, (1,)),
        (Outcome.INFO, 130, 140, ()),
        (Outcome.INFO, 140, None, ()),
    ]
    assert sends[-1].values == (body(4),), "what it was sending when it was killed"


def test_stream_whose_first_send_fails_goes_on_from_the_start_of_the_run() -> None:
    sends = list(sends_of([{"number": 0, "status": "ERROR"}, JAVA[2]], "java", "T", RUN, tries=1))
    assert [(send.outcome, send.invoked, send.completed) for send in sends] == [
        (Outcome.INFO, 100, None),
        (Outcome.OK, 100, 130),
        (Outcome.INFO, 130, None),
    ]


def test_sends_without_times_may_have_been_at_any_time() -> None:
    go = [
        {"kind": "sync", "number": 0, "status": 0, "queue": 3, "offset": 7},
        {"kind": "oneway", "number": 0},
    ]
    assert list(sends_of(go, "go", "T", RUN)) == [
        Send("go", 100, 200, Outcome.OK, (body(0, "sync"),), Queue("T", 3), (7,), None),
        Send("go", 100, 200, Outcome.INFO, (body(0, "oneway"),), None, (), None),
    ]


def test_python_driver_tells_no_queue() -> None:
    (send,) = sends_of([{"kind": "sync", "number": 0, "status": 0, "offset": 7}], "python", "T", RUN)
    assert (send.outcome, send.queue, send.offsets) == (Outcome.OK, None, ())


def test_listener_calls_are_polls_of_one_message_and_retries_are_left_out() -> None:
    report = [
        consumed(0, 4, "a"),
        consumed(0, 9, "b", reconsume_times=1),
        consumed(0, 0, "c", topic="%RETRY%G"),
    ]
    assert list(polls_of(report, "java", "T", RUN, is_ordered=True)) == [
        Poll("java", 100, 200, Outcome.OK, Queue("T", 0), None, ((4, "a"),), None, True)
    ]


def history(received: list[dict[str, Any]]) -> list[Any]:
    final = polls_of([consumed(0, 0, body(0)), consumed(0, 1, body(2))], "final", "T", (300, 310))
    drain = Drain("final", 300, 310, Queue("T", 0), 0, 2)
    sends = sends_of(JAVA, "java", "T", RUN, tries=1)
    return merged(sends, polls_of(received, "consumer", "T", RUN), final, [drain])


def test_merged_history_is_clean() -> None:
    check(history([consumed(0, 1, body(2)), consumed(0, 0, body(0))])).assert_clean()


def test_stranger_in_a_merged_history_is_found() -> None:
    report = check(history([consumed(0, 0, body(0)), consumed(1, 0, body(99))]))
    assert report.counts[Word.UNKNOWN_VALUE] == 1
