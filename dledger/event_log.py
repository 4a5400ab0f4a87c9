"""What the core reports, in the node's log: a line for each event, whose kind and fields go with it."""

import enum
import logging
from dataclasses import fields

from dledger.core.events import (
    AppendTimedOut,
    EntryDamaged,
    Impaired,
    LogReset,
    PushMisplaced,
    TruncationRefused,
)
from dledger.core.output import Event

logger = logging.getLogger(__name__)

_WARNINGS = (AppendTimedOut, EntryDamaged, Impaired, LogReset, PushMisplaced, TruncationRefused)
"""Somebody may have to do something, or a client was told of a failure."""


class EventLog:
    """Of one node."""

    def __init__(self, self_id: str) -> None:
        self._self_id = self_id
        self._last: Event | None = None

    def tell(self, event: Event) -> None:
        """Once when it is new: a minority's pre-votes come again every second for as long as it is one."""
        level = logging.INFO
        if event == self._last:
            level = logging.DEBUG
        elif isinstance(event, _WARNINGS):
            level = logging.WARNING
        self._last = event
        if logger.isEnabledFor(level):
            own = {each.name: _plain(getattr(event, each.name)) for each in fields(event)}
            extra = {"event": type(event).__name__, "fields": own}
            logger.log(level, "[%s] %s", self._self_id, event, extra=extra)


def _plain(value: object) -> object:
    return value.name if isinstance(value, enum.Enum) else value
