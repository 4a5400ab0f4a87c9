"""OpenTelemetry's spans and metrics of a client, by the semantic conventions for messaging. Needs the package
opentelemetry-api; without an SDK in the process it does nothing.

    Producer("127.0.0.1:9876", hooks=[OpenTelemetryHook()])

The trace goes with each message, in the properties of the W3C trace context.
"""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Final

from opentelemetry import metrics, propagate, trace
from opentelemetry.util.types import AttributeValue

from ledgermq.client.hooks import Sending
from ledgermq.client.messages import Message, ReceivedMessage, SendResult

SYSTEM: Final = "rocketmq"
_NAME: Final = "ledgermq.client"
_Attributes = dict[str, AttributeValue]


class OpenTelemetryHook:
    """None: the global providers."""

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
    ) -> None:
        self._tracer = trace.get_tracer(_NAME, tracer_provider=tracer_provider)
        meter = metrics.get_meter(_NAME, meter_provider=meter_provider)
        self._sends = meter.create_histogram(
            "messaging.client.operation.duration", "s", "of sends, with all their tries"
        )
        self._handlings = meter.create_histogram(
            "messaging.process.duration", "s", "of handlers that got a message"
        )

    def sending(self, message: Message, group: str) -> Sending:
        """A PRODUCER span around the send."""
        return _SendSpan(self._tracer, self._sends, message, group)

    def handling(self, message: ReceivedMessage, group: str) -> AbstractContextManager[object]:
        """A CONSUMER span around the handler, in the trace of the message."""
        return self._handling(message, group)

    @contextmanager
    def _handling(self, message: ReceivedMessage, group: str) -> Iterator[None]:
        attributes = _attributes("process", message.topic, group) | {
            "messaging.destination.partition.id": str(message.queue.queue_id),
            "messaging.message.id": message.message_id,
        }
        began_s = time.perf_counter()
        with self._tracer.start_as_current_span(
            f"process {message.topic}",
            propagate.extract(message.properties),
            trace.SpanKind.CONSUMER,
            attributes,
        ):
            try:
                yield
            finally:
                self._handlings.record(
                    time.perf_counter() - began_s, _attributes("process", message.topic, group)
                )


class _SendSpan(Sending):
    def __init__(self, tracer: trace.Tracer, sends: metrics.Histogram, message: Message, group: str) -> None:
        self._sends = sends
        self._attributes = _attributes("send", message.topic, group)
        self._span = tracer.start_span(
            f"send {message.topic}", kind=trace.SpanKind.PRODUCER, attributes=self._attributes
        )
        carrier: dict[str, str] = {}
        propagate.inject(carrier, trace.set_span_in_context(self._span))
        message.properties = {**message.properties, **carrier}
        self._began_s = time.perf_counter()

    def sent(self, result: SendResult) -> None:
        self._span.set_attribute("messaging.message.id", result.message_id)
        self._span.set_attribute("messaging.destination.partition.id", str(result.queue.queue_id))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        failed: _Attributes = {} if kind is None else {"error.type": kind.__name__}
        if error is not None:
            self._span.record_exception(error)
            self._span.set_status(trace.StatusCode.ERROR, str(error))
        self._span.end()
        self._sends.record(time.perf_counter() - self._began_s, self._attributes | failed)


def _attributes(operation: str, topic: str, group: str) -> _Attributes:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
        "messaging.consumer.group.name" if operation == "process" else "messaging.client.id": group,
    }
