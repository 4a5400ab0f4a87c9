"""What becomes of a message once its handler has ended: done, tried again later, or a dead letter
(ConsumeMessageConcurrentlyService, ConsumeMessageOrderlyService). Pure.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

RECONSUME_TIMES_MAX: Final = 16
"""RocketMQ's default for consumers that are not ordered; ordered ones try for ever."""
DELAY_LEVEL_MAX: Final = 18
DEAD_LETTER_LEVEL: Final = -1


class RetryLater(Exception):  # noqa: N818  raised by handlers to say what they want, not an error of ours
    """Raised by a handler: have the message again later, as after any other exception, but without a warning
    in the log.

    delay_level: 1 to 18, RocketMQ's levels; None: 10 s after the first try, then 30 s, 1 min, up to 2 h.
        Ordered consumers wait `suspend_s` instead, whatever it says.
    """

    def __init__(self, reason: str = "", *, delay_level: int | None = None) -> None:
        if delay_level is not None and not 1 <= delay_level <= DELAY_LEVEL_MAX:
            raise ValueError(f"delay_level {delay_level} is not between 1 and {DELAY_LEVEL_MAX}")
        super().__init__(reason or "a handler wants the message later")
        self.delay_level = delay_level


class DeadLetter(Exception):  # noqa: N818  as RetryLater
    """Raised by a handler: no further try can help. The message goes to `%DLQ%group`, where an operator finds
    it.
    """


class Action(Enum):
    DONE = "done"
    SEND_BACK = "send back"
    """The broker puts a copy into the group's retry topic, or into its dead letters."""
    TRY_AGAIN = "try again"
    """Here, before any later message of the queue."""
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class Decision:
    """delay_level: of a message that is sent back; 0: the broker chooses it; -1: a dead letter."""

    action: Action
    delay_level: int = 0


DONE: Final = Decision(Action.DONE)


@dataclass(frozen=True, slots=True)
class Retries:
    """The rules of one consumer.

    reconsume_times_max: tries after the first; None: the default of its kind.
    """

    is_ordered: bool = False
    is_broadcast: bool = False
    reconsume_times_max: int | None = None

    @property
    def times_max(self) -> int:
        """For the broker, which makes a dead letter of what comes back after so many tries."""
        return RECONSUME_TIMES_MAX if self.reconsume_times_max is None else self.reconsume_times_max

    def decide(self, error: BaseException | None, attempts: int) -> Decision:
        """error: how the handler ended. attempts: deliveries before this one."""
        if error is None:
            return DONE
        if self.is_ordered:
            return self._in_order(error, attempts)
        if self.is_broadcast:
            return Decision(Action.DROP)  # as RocketMQ: there is no retry topic for one member alone
        if isinstance(error, DeadLetter):
            return Decision(Action.SEND_BACK, DEAD_LETTER_LEVEL)
        if isinstance(error, RetryLater) and error.delay_level is not None:
            return Decision(Action.SEND_BACK, error.delay_level)
        return Decision(Action.SEND_BACK)

    def _in_order(self, error: BaseException, attempts: int) -> Decision:
        is_over = self.reconsume_times_max is not None and attempts >= self.reconsume_times_max
        if not is_over and not isinstance(error, DeadLetter):
            return Decision(Action.TRY_AGAIN)
        if self.is_broadcast:
            return Decision(Action.DROP)
        return Decision(Action.SEND_BACK, DEAD_LETTER_LEVEL)
