"""Spans and metrics of sends and handlers, by the API of OpenTelemetry with providers that write down."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.trace import SpanContext, TraceFlags

from ledgermq.client import Message, MessageQueue, Producer, ReceivedMessage, WrongMessageError
from ledgermq.client.hooks import Hooks
from ledgermq.client.opentelemetry import OpenTelemetryHook
from remoting.record import parse_properties
from tests.unit.ledgermq.client.fake_cluster import TOPIC, FakeCluster, running

TRACE_ID, SPAN_ID = 0xABC, 0xDEF


class Span(trace.NonRecordingSpan):
    """Keeps what it is given."""

    def __init__(self, name: str, parent: SpanContext, kind: trace.SpanKind, attributes: Any) -> None:
        super().__init__(SpanContext(TRACE_ID, SPAN_ID, is_remote=False, trace_flags=TraceFlags(1)))
        self.name, self.parent, self.kind = name, parent, kind
        self.attributes = dict(attributes)
        self.errors: list[BaseException] = []
        self.is_ended = False

    def set_attribute(self, key: str, value: Any) -> None:
        self.attributes[key] = value

    def record_exception(self, exception: BaseException, *_: Any, **__: Any) -> None:
        self.errors.append(exception)

    def end(self, end_time: int | None = None) -> None:
        self.is_ended = True


class Tracing(trace.TracerProvider, trace.Tracer):
    """The provider, and its only tracer."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def get_tracer(self, *_: Any, **__: Any) -> trace.Tracer:
        return self

    def start_span(
        self, name: str, context: Any = None, kind: Any = None, attributes: Any = None, *_: Any, **__: Any
    ) -> Span:
        parent = trace.get_current_span(context).get_span_context()
        self.spans.append(Span(name, parent, kind, attributes or {}))
        return self.spans[-1]

    @contextmanager
    def start_as_current_span(  # type: ignore[override]
        self, name: str, context: Any = None, kind: Any = None, attributes: Any = None
    ) -> Iterator[Span]:
        span = self.start_span(name, context, kind, attributes)
        with trace.use_span(span, end_on_exit=True):
            yield span


class Figures(metrics.NoOpMeterProvider):
    """Writes down what the histograms get."""

    def __init__(self) -> None:
        self.recorded: list[tuple[str, Mapping[str, Any]]] = []

    def get_meter(self, *_: Any, **__: Any) -> metrics.Meter:
        figures = self

        class Meter(metrics.NoOpMeter):
            def create_histogram(self, name: str, *_: Any, **__: Any) -> metrics.Histogram:
                class Histogram(metrics.NoOpHistogram):
                    def record(self, amount: float, attributes: Any = None, *_: Any, **__: Any) -> None:
                        assert amount >= 0
                        figures.recorded.append((name, attributes))

                return Histogram(name)

        return Meter("ledgermq.client")


@pytest.fixture
def tracing() -> Tracing:
    return Tracing()


@pytest.fixture
def figures() -> Figures:
    return Figures()


async def test_a_send_has_a_span_and_the_message_carries_its_trace(
    tracing: Tracing, figures: Figures
) -> None:
    hook = OpenTelemetryHook(tracing, figures)
    async with running(FakeCluster()) as cluster, Producer(cluster.namesrv, hooks=[hook]) as producer:
        message = Message(TOPIC, b"m", properties={"p": "v"})
        result = await producer.send(message)
    (span,) = tracing.spans
    assert (span.name, span.kind, span.is_ended) == (f"send {TOPIC}", trace.SpanKind.PRODUCER, True)
    assert span.attributes["messaging.message.id"] == result.message_id
    (kept,) = cluster.kept
    properties = parse_properties(kept.header.properties.encode())  # type: ignore[union-attr]
    assert properties["traceparent"] == f"00-{TRACE_ID:032x}-{SPAN_ID:016x}-01"
    assert properties["p"] == "v"
    assert message.properties == {"p": "v"}, "the caller's message is as it was"
    assert [name for name, _ in figures.recorded] == ["messaging.client.operation.duration"]


async def test_a_failed_send_is_an_error_of_its_span(tracing: Tracing, figures: Figures) -> None:
    hook = OpenTelemetryHook(tracing, figures)
    async with running(FakeCluster()) as cluster, Producer(cluster.namesrv, hooks=[hook]) as producer:
        with pytest.raises(WrongMessageError):
            await producer.send(Message("no topic", b"m"))
    assert [type(error) for error in tracing.spans[0].errors] == [WrongMessageError]
    assert figures.recorded[0][1]["error.type"] == "WrongMessageError"


def test_a_handler_runs_in_the_trace_of_its_message(tracing: Tracing, figures: Figures) -> None:
    queue = MessageQueue(TOPIC, "broker-a", 0)
    properties = {"traceparent": f"00-{TRACE_ID:032x}-{SPAN_ID:016x}-01"}
    received = ReceivedMessage(TOPIC, b"m", queue, 0, 0, "K", "", None, (), properties, 0, 0, 0, "h:1", 0)
    hooks = Hooks([OpenTelemetryHook(tracing, figures)], "billing")
    with pytest.raises(KeyError), hooks.handling(received):
        raise KeyError
    (span,) = tracing.spans
    assert (span.name, span.kind) == (f"process {TOPIC}", trace.SpanKind.CONSUMER)
    assert (span.parent.trace_id, span.parent.span_id) == (TRACE_ID, SPAN_ID)
    assert span.attributes["messaging.consumer.group.name"] == "billing"
    assert figures.recorded[0][0] == "messaging.process.duration"
