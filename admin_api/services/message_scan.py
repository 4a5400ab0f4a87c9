"""All messages of a topic between two times, queue by queue, the oldest first, a pull at a time."""

from collections.abc import AsyncIterator
from typing import Final

from admin_api.gateway import Trouble
from admin_api.services.errors import UnavailableError
from admin_api.services.message_cursor import Search
from admin_api.services.message_window import is_wanted, next_offset
from admin_api.services.messages import Messages
from admin_api.sources.messages import PULL_COUNT
from remoting.record import Record

SCANNED_BYTES_MAX: Final = 256 * 1024 * 1024
"""Of one scan; then it ends, and says so."""


class Scan:
    """One pass. When it is over, `is_cut` tells whether the bound ended it."""

    def __init__(self, messages: Messages, search: Search) -> None:
        self.is_cut = False
        self._messages = messages
        self._search = search

    async def records(self) -> AsyncIterator[tuple[Record, str]]:
        """Records with their broker's name.

        Raises: NotFoundError; UnavailableError when a broker that has a part of them gives no answer;
        AskError when one falls silent on the way.
        """
        search, windows = self._search, self._messages.windows
        lanes, troubles = await windows.lanes(search, await self._messages.places.queues_of(search.topic))
        refuse_partial(troubles)
        left_bytes = SCANNED_BYTES_MAX
        for place, low, high in lanes:
            at = low
            while at < high:
                if left_bytes <= 0:
                    self.is_cut = True
                    return
                pulled = await self._messages.source.pull(
                    place.address, search.topic, place.queue_id, at, PULL_COUNT, search.tag or "*"
                )
                left_bytes -= pulled.size_bytes
                for record in pulled.records:
                    if at <= record.queue_offset < high and is_wanted(record, search):
                        yield record, place.broker_name
                at = next_offset(at, pulled.next_offset, high)


def refuse_partial(troubles: tuple[Trouble, ...]) -> None:
    """What is done to all must know all. Raises: UnavailableError."""
    if troubles:
        raise UnavailableError(f"Some of the messages cannot be read now: {troubles[0].problem}")
