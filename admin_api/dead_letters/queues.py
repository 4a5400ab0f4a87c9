"""Which groups have dead letters, how many, and how old, without reading a message."""

import asyncio
from typing import Final

from pydantic import Field

from admin_api.errors import NotFoundError, PageWanted, UnavailableError, partial_fields
from admin_api.gateway import AskError, Gateway, Trouble
from admin_api.messages.places import Places, TopicPlace
from admin_api.schema import Page, Schema
from admin_api.sources.brokers import BrokerDirectory
from admin_api.sources.messages import MessageSource
from admin_api.sources.offsets import BoundsRow, OffsetSource
from remoting.topic_names import DLQ_PREFIX


class DlqView(Schema):
    """The dead letters of one group."""

    group: str
    topic: str
    count: int | None = Field(description="messages that are still in the log; null: unknown")
    oldest_at_ms: int | None = Field(description="when the oldest of them came; null: none, or unknown")
    newest_at_ms: int | None = Field(description="when the newest came; null: none, or unknown")
    is_partial: bool = Field(default=False, description="a broker that has some of them did not answer")


GROUPS_AT_ONCE_MAX: Final = 16


class DlqQueues:
    """Looks at the %DLQ% topics as queues."""

    def __init__(
        self, gateway: Gateway, directory: BrokerDirectory, source: MessageSource, offsets: OffsetSource
    ) -> None:
        self._gateway = gateway
        self._source = source
        self._offsets = offsets
        self._name_servers = directory.name_servers
        self._places = Places(directory)

    async def groups(self, wanted: PageWanted, text: str | None = None) -> Page[DlqView]:
        """The groups that have a dead-letter topic, by name; those whose name holds the text.

        Raises: UnavailableError when no name server answers.
        """
        try:
            topics = await self._name_servers.topics()
        except AskError as error:
            raise UnavailableError(str(error)) from error
        names = [topic.removeprefix(DLQ_PREFIX) for topic in topics if topic.startswith(DLQ_PREFIX)]
        names = [name for name in names if text is None or text.lower() in name.lower()]
        gate = asyncio.Semaphore(GROUPS_AT_ONCE_MAX)
        troubles: dict[Trouble, None] = {}

        async def view_of(name: str) -> DlqView | None:
            async with gate:
                try:
                    return await self._group(name, troubles)
                except NotFoundError:
                    return None  # its topic went after the list was made
                except UnavailableError as error:
                    troubles[Trouble(DLQ_PREFIX + name, str(error))] = None
                    return _unknown(name)

        found = await asyncio.gather(*map(view_of, wanted.of(names)))
        items = [view for view in found if view is not None]
        return Page[DlqView](
            items=items,
            page=wanted.number,
            page_size=wanted.size,
            total=len(names) - len(found) + len(items),
            **partial_fields(troubles),
        )

    async def group(self, group: str) -> DlqView:
        """Raises: NotFoundError without dead letters, UnavailableError when brokers do not answer."""
        troubles: dict[Trouble, None] = {}
        view = await self._group(group, troubles)
        if view.count is None:
            raise UnavailableError(next(iter(troubles)).problem if troubles else f"{group} cannot be read.")
        return view

    async def _group(self, group: str, troubles: dict[Trouble, None]) -> DlqView:
        """Raises: NotFoundError when there is no such topic (any more), UnavailableError."""
        topic = DLQ_PREFIX + group
        places = await self.places(group)
        asked = await self._gateway.ask_each(places, lambda place: self._part(place, topic))
        if not places:
            troubles[Trouble(topic, f"the route of {topic} names no broker")] = None
        troubles.update(dict.fromkeys(asked.troubles))
        parts = [part for part in asked.answers.values() if part is not None]
        if not parts:
            if places and not asked.troubles:
                raise _absent(group)
            return _unknown(group)
        oldest = [first for _, first, _ in parts if first is not None]
        newest = [last for _, _, last in parts if last is not None]
        return DlqView(
            group=group,
            topic=topic,
            count=sum(count for count, _, _ in parts),
            oldest_at_ms=min(oldest, default=None),
            newest_at_ms=max(newest, default=None),
            is_partial=bool(asked.troubles),
        )

    async def places(self, group: str) -> list[TopicPlace]:
        """Raises: NotFoundError when the group has no dead-letter topic, UnavailableError."""
        try:
            return await self._places.of_topic(DLQ_PREFIX + group)
        except NotFoundError as error:
            raise _absent(group) from error

    async def _part(self, place: TopicPlace, topic: str) -> tuple[int, int | None, int | None] | None:
        """(messages, oldest ms, newest ms) on one broker; None where it does not have the topic.

        Raises: AskError.
        """
        address = place.addresses[0]
        rows = await self._offsets.bounds(address, topic)
        if rows is None:
            return None
        full: dict[int, BoundsRow] = {
            key.queue_id: row for key, row in rows.items() if row.min_offset < row.max_offset
        }
        asked = (self._source.earliest_ms(address, topic, queue_id) for queue_id in full)
        oldest = await asyncio.gather(*asked)
        newest = [row.last_update_timestamp for row in full.values() if row.last_update_timestamp > 0]
        count = sum(row.max_offset - row.min_offset for row in full.values())
        known = [time_ms for time_ms in oldest if time_ms is not None]
        return count, min(known, default=None), max(newest, default=None)


def _unknown(group: str) -> DlqView:
    """Of a group whose letters could not be counted."""
    return DlqView(
        group=group,
        topic=DLQ_PREFIX + group,
        count=None,
        oldest_at_ms=None,
        newest_at_ms=None,
        is_partial=True,
    )


def _absent(group: str) -> NotFoundError:
    return NotFoundError(f"The group {group} has no dead letters.")
