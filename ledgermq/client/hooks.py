"""What runs around each send and each handling of a message: traces, metrics, changes of properties.

OpenTelemetry's spans and counters are one such hook (`ledgermq.client.opentelemetry`).
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from types import TracebackType
from typing import Protocol, Self

from ledgermq.client.messages import Message, ReceivedMessage, SendResult


class Sending(AbstractContextManager["Sending"]):
    """One send: entered before it, left with its error or without. Subclasses override what they need."""

    def sent(self, result: SendResult) -> None:
        """A majority has the message."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """The send has ended."""


class Hook(Protocol):
    """Called on the client's loop; what it raises fails the send, or counts as the handler's failure."""

    def sending(self, message: Message, group: str) -> Sending:
        """A message is about to be sent; its properties may be changed here."""
        ...

    def handling(self, message: ReceivedMessage, group: str) -> AbstractContextManager[object]:
        """A handler is about to get a message."""
        ...


class Hooks:
    """All hooks of one client, entered in their order and left in reverse."""

    def __init__(self, hooks: Iterable[Hook], group: str) -> None:
        self._hooks = tuple(hooks)
        self._group = group

    def own(self, message: Message) -> Message:
        """What hooks may change: not the caller's."""
        return replace(message) if self._hooks else message

    def sending(self, message: Message) -> "_Sendings | Sending":
        return (
            _Sendings([each.sending(message, self._group) for each in self._hooks]) if self._hooks else _NONE
        )

    def handling(self, message: ReceivedMessage) -> AbstractContextManager[object]:
        if not self._hooks:
            return _NOTHING
        stack = ExitStack()
        try:
            for each in self._hooks:
                stack.enter_context(each.handling(message, self._group))
        except BaseException:
            stack.close()
            raise
        return stack


class _Sendings(Sending):
    def __init__(self, entered: list[Sending]) -> None:
        self._sendings = entered
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for each in self._sendings:
            self._stack.enter_context(each)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, traceback)

    def sent(self, result: SendResult) -> None:
        for each in self._sendings:
            each.sent(result)


_NONE = Sending()
_NOTHING = nullcontext()
