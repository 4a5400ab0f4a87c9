"""Admission of messages with a delivery time: each is made ready for the log, or refused
(HookUtils.handleScheduleMessage, SendMessageProcessor.handlePutMessageResult).

The limits are timerPendingMax for all waiting messages, and timerCongestNumEachSlot for those of one time.
"""

from collections.abc import Callable, Mapping

from broker.config import BrokerConfig
from broker.timer.index import TimerIndex
from broker.timer.records import OWN_PROPERTIES_BYTES
from broker.timer.scheduling import (
    ASKING_PROPERTIES,
    PROPERTY_OUT_MS,
    TimerIllegalError,
    due_ms,
    is_timed,
    to_timer,
)
from commitlog.record import PROPERTIES_BYTES_MAX, Message, get_property
from remoting.codes import ResponseCode
from remoting.errors import RequestError
from remoting.recall_handle import encode_handle
from remoting.topic_names import RETRY_PREFIX

NAME_START = "TIMER_D"
"""Common prefix of the property names by which a sender asks for a time."""
WAITING_PROPERTIES_BYTES_MAX = PROPERTIES_BYTES_MAX - OWN_PROPERTIES_BYTES
PENDING_APPENDS_MIN = 2
"""Appends that the log must accept at once: a message, and the record of its delivery before it."""
NO_LIMIT = (1 << 31) - 1
COUNTED_TIMES_MAX = 4_096


class TimerRules:
    """The rules of one broker."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Callable[[], int],
        may_time: Callable[[int], bool] = lambda out_ms: True,
    ) -> None:
        self._clock = clock
        self._may_time = may_time
        self._broker_name = config.broker_name
        self._is_enabled = config.timer_wheel_enable and config.pending_appends_max >= PENDING_APPENDS_MIN
        self._delay_max_ms = config.timer_max_delay_s * 1_000
        self._precision_ms = config.timer_precision_ms
        self._congest_max = config.timer_slot_max
        self._pending_max = config.timer_pending_max

    def waiting(
        self, message: Message, properties: Mapping[str, str], added_bytes: int = 0
    ) -> Message | None:
        """The message as it waits; None when it asks for no time, or for one that has passed. Its
        properties are still to get `added_bytes`.

        Raises RequestError, MessageIllegalError.
        """
        out_ms = self._out_ms(properties)
        if out_ms is None:
            return None
        if not self._may_time(out_ms):
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"timer message is under flow control, max num limit is {self._pending_max} in all, and "
                f"{self._congest_max} of one time",
            )
        waiting = to_timer(message, properties, out_ms)
        size_bytes = len(waiting.properties) + added_bytes
        if size_bytes > WAITING_PROPERTIES_BYTES_MAX:
            remark = (
                f"the properties have {size_bytes} bytes; {WAITING_PROPERTIES_BYTES_MAX} are possible here"
            )
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, remark)
        return waiting

    def handle(self, topic: str, waiting: Message, unique_key: str) -> str:
        """The handle by which the sender can recall the message; empty for a message of a retry topic."""
        out_ms = get_property(waiting.properties, PROPERTY_OUT_MS.encode())
        if out_ms is None or topic.startswith(RETRY_PREFIX):
            return ""
        return encode_handle(topic, self._broker_name, int(out_ms), unique_key)

    def check(self, properties: Mapping[str, str]) -> None:
        """Refuse what could not be kept. Raises RequestError."""
        self._out_ms(properties)

    def committed(self, message: Message, properties: Mapping[str, str]) -> Message:
        """A committed message of a transaction. Its time was checked when it was prepared; a delay counts
        from the commit. It is delivered at once when its delivery time is no longer valid.
        """
        try:
            out_ms = self._out_ms(properties)
        except RequestError:
            return message
        waiting = message if out_ms is None else to_timer(message, properties, out_ms)
        return waiting if len(waiting.properties) <= WAITING_PROPERTIES_BYTES_MAX else message

    def _out_ms(self, properties: Mapping[str, str]) -> int | None:
        if not is_timed(properties):
            return None
        if not self._is_enabled:
            remark = "accurate timer message is not enabled, timerWheelEnable is false"
            raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
        try:
            return due_ms(properties, self._clock(), self._delay_max_ms, self._precision_ms)
        except TimerIllegalError as error:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                "timer message illegal, the delay time should not be bigger than the max delay "
                f"{self._delay_max_ms}ms; or if set del msg, the delay time should be bigger than the "
                f"current time: {error}",
            ) from error


def asks_for_time(properties: bytes) -> bool:
    """Whether a message's properties may ask for a time; `is_timed` decides. This needs no parsing."""
    return any(f"{name}\x01".encode() in properties for name in ASKING_PROPERTIES)


class TimerLimits:
    """Checked for each timer message before it is accepted. Messages that are not in the log yet are not
    counted in the total; for one delivery time they are counted from the first check of that time on.
    """

    def __init__(self, config: BrokerConfig, index: TimerIndex) -> None:
        self._index = index
        self._pending_max = config.timer_pending_max
        self._congest_max = config.timer_slot_max
        self._counts: dict[int, int] = {}

    def may_time(self, out_ms: int) -> bool:
        if self._index.pending.count >= self._pending_max:
            return False
        if self._congest_max >= NO_LIMIT:
            return True
        count = self._counts.get(out_ms)
        if count is None:
            if len(self._counts) >= COUNTED_TIMES_MAX:
                self._counts.clear()
            count = self._index.count_at(out_ms)
        is_free = count < self._congest_max
        self._counts[out_ms] = count + is_free
        return is_free
