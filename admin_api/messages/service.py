"""Finds messages by id, by key or by time, and reports where they were consumed."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from admin_api.errors import NotFoundError, UnavailableError, partial_fields
from admin_api.gateway import AskError, Gateway, Trouble
from admin_api.messages import views as message_views
from admin_api.messages.places import Places, TopicPlace
from admin_api.messages.views import (
    BODY_SHOWN_BYTES,
    BodyFormat,
    MessageSummary,
    MessageView,
    MessageWindow,
    OffsetId,
    id_of,
    parse_offset_id,
    summarize,
)
from admin_api.messages.window import FOREVER_MS, Search, WindowReader
from admin_api.sources.brokers import BrokerDirectory, BrokerSet
from admin_api.sources.groups import GroupSource
from admin_api.sources.messages import MessageSource
from admin_api.sources.offsets import OffsetSource
from remoting.record import Record, get_property

if TYPE_CHECKING:  # imported by the methods that use it: a search does without
    from admin_api.messages.tracks import MessageTrace, MessageTrack, TrackView

TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
"""Where clients send their traces, unless configured otherwise."""
KEY_COUNT_MAX: Final = 64
"""What a broker answers at most to a query by key."""
VIEWERS_MAX: Final = 16
"""Nodes asked for one message at once."""
GROUPS_MAX: Final = 500
"""Groups reported for one message."""


@dataclass(frozen=True, slots=True)
class Found:
    """A message, the broker that has it and, found by a client's id, the others with the same."""

    record: Record
    broker_name: str | None
    copies: tuple[Record, ...] = ()


class Messages:
    """Looks for messages. Everything raises NotFoundError and UnavailableError; the latter too when a broker
    that may have the message is silent and no other has it.
    """

    def __init__(
        self, gateway: Gateway, directory: BrokerDirectory, source: MessageSource, offsets: OffsetSource
    ) -> None:
        self.gateway = gateway
        self.directory = directory
        self.source = source
        self.places = Places(directory)
        self.windows = WindowReader(gateway, source, offsets, self.places)
        self.groups = GroupSource(gateway)
        self._offsets = offsets

    async def find(self, message_id: str, topic: str | None = None) -> Found:
        """By its offset message id, or in the topic by the id that its client gave it."""
        offset_id = parse_offset_id(message_id)
        troubles: tuple[Trouble, ...] = ()
        if offset_id is not None:
            found, troubles = await self._by_offset_id(offset_id, message_id.upper(), topic)
            if found is not None:
                return found
        if topic is not None:
            try:
                return await self._by_unique_key(message_id, topic)
            except NotFoundError:
                if not troubles:
                    raise
        if troubles:
            raise UnavailableError(
                f"The brokers that may have {message_id} did not answer: {troubles[0].problem}"
            )
        raise NotFoundError(
            f"No message has the offset message id {message_id}. An id given by a client needs its topic too."
        )

    async def _by_offset_id(
        self, wanted: OffsetId, text: str, topic: str | None
    ) -> tuple[Found | None, tuple[Trouble, ...]]:
        """Only brokers of this cluster are asked, whatever address the id holds."""
        try:
            brokers = await self.directory.current()
        except AskError as error:
            raise UnavailableError(str(error)) from error
        asked = await self.gateway.ask_each(
            _viewers(brokers, wanted.address), lambda at: self.source.view(at, wanted.position, topic)
        )
        for address, record in asked.answers.items():
            if record is not None and id_of(record) == text:
                return Found(record, _broker_name(brokers, address)), ()
        return None, asked.troubles

    async def _by_unique_key(self, unique_key: str, topic: str) -> Found:
        pairs, troubles = await self._query(topic, unique_key, 0, FOREVER_MS, KEY_COUNT_MAX, is_id=True)
        if pairs:
            (record, broker_name), *others = pairs
            return Found(record, broker_name, tuple(other for other, _ in others))
        if troubles:
            raise UnavailableError(
                f"The brokers that may have {unique_key} did not answer: {troubles[0].problem}"
            )
        raise NotFoundError(f"No message of {topic} has the id {unique_key}, or it is not indexed any more.")

    async def find_all(self, unique_key: str, topic: str) -> list[Record]:
        """Every message of the topic with this client's id that is indexed, the newest first; all or none,
        as a silent broker may have the one that matters.
        """
        pairs, troubles = await self._query(topic, unique_key, 0, FOREVER_MS, KEY_COUNT_MAX, is_id=True)
        if troubles:
            raise UnavailableError(f"Not all who may have {unique_key} say so: {troubles[0].problem}")
        return [record for record, _ in pairs]

    async def view(
        self,
        message_id: str,
        topic: str | None = None,
        body_format: BodyFormat = BodyFormat.AUTO,
        shown_bytes: int = BODY_SHOWN_BYTES,
    ) -> MessageView:
        """The whole message."""
        found = await self.find(message_id, topic)
        copies = [summarize(record, None) for record in found.copies]
        return message_views.view(found.record, found.broker_name, body_format, shown_bytes, copies)

    async def by_key(
        self, topic: str, key: str, from_ms: int = 0, to_ms: int = FOREVER_MS, limit: int = KEY_COUNT_MAX
    ) -> MessageWindow:
        """The newest messages of the topic with the key, or with it as its client's id."""
        pairs, troubles = await self._query(topic, key, from_ms, to_ms, limit, is_id=False)
        if not pairs and troubles:
            raise UnavailableError(f"The brokers that may have them did not answer: {troubles[0].problem}")
        items = [summarize(record, broker_name) for record, broker_name in pairs[:limit]]
        return _window(items, None, None, troubles)

    async def _query(
        self, topic: str, key: str, from_ms: int, to_ms: int, limit: int, *, is_id: bool
    ) -> tuple[list[tuple[Record, str]], tuple[Trouble, ...]]:
        """Records with their broker's name, the newest first."""
        places = await self.places.of_topic(topic)

        async def ask(place: TopicPlace) -> tuple[Record, ...]:
            return await self._first_answer(place, topic, key, from_ms, to_ms, limit, is_id=is_id)

        asked = await self.gateway.ask_each(places, ask)
        found = {
            id_of(record): (record, place.broker_name)
            for place, records in asked.answers.items()
            for record in records
            if _has_key(record, topic, key, is_id=is_id) and from_ms <= record.store_timestamp_ms <= to_ms
        }
        newest = sorted(found.values(), key=lambda pair: -pair[0].store_timestamp_ms)
        return newest, asked.troubles

    async def _first_answer(
        self, place: TopicPlace, topic: str, key: str, from_ms: int, to_ms: int, limit: int, *, is_id: bool
    ) -> tuple[Record, ...]:
        """Every node of a group answers by key, so a silent one is passed over. Raises: AskError."""
        *first, last = place.addresses
        for address in first:
            try:
                return await self.source.query(
                    address, topic, key, begin_ms=from_ms, end_ms=to_ms, count_max=limit, is_id=is_id
                )
            except AskError:
                continue
        return await self.source.query(
            last, topic, key, begin_ms=from_ms, end_ms=to_ms, count_max=limit, is_id=is_id
        )

    async def window(
        self,
        search: Search,
        limit: int,
        *,
        broker_name: str | None = None,
        queue_id: int | None = None,
    ) -> MessageWindow:
        """The newest messages of a topic between two times."""
        part = await self.windows.begin(search, limit, summarize, broker_name=broker_name, queue_id=queue_id)
        return _window(part.items, part.cursor, part.examined, part.troubles)

    async def next_window(self, topic: str, cursor: str, limit: int) -> MessageWindow:
        """The part behind the cursor. Raises: InvalidError too."""
        part = await self.windows.resume(topic, cursor, limit, summarize)
        return _window(part.items, part.cursor, part.examined, part.troubles)

    async def at_offset(
        self, topic: str, broker_name: str, queue_id: int, offset: int, limit: int
    ) -> MessageWindow:
        """The messages of one queue from an offset on, the oldest first; at most what one pull gives."""
        (place,) = await self.places.queues_of(topic, broker_name, queue_id)
        try:
            pulled = await self.source.pull(place.address, topic, queue_id, offset, limit, "*")
        except AskError as error:
            raise UnavailableError(str(error)) from error
        items = [summarize(record, broker_name) for record in pulled.records if record.topic == topic]
        return _window(items, None, len(items), ())

    async def body(self, message_id: str, topic: str | None = None) -> bytes:
        """The whole body, unpacked. Raises: InvalidError when it cannot be."""
        return message_views.plain_body((await self.find(message_id, topic)).record)

    async def trace(
        self, message_id: str, topic: str | None = None, trace_topic: str = TRACE_TOPIC
    ) -> "MessageTrace":
        """The trace that clients sent of a message with this client's id. For an offset message id the
        client's id is read first.
        """
        from admin_api.messages.tracks import MessageTrace, spans_of

        unique_key = await self._unique_key(message_id, topic)
        try:
            pairs, troubles = await self._query(
                trace_topic, unique_key, 0, FOREVER_MS, KEY_COUNT_MAX, is_id=False
            )
        except NotFoundError:
            pairs, troubles = [], ()
        if not pairs and troubles:
            raise UnavailableError(
                f"The brokers that may have the trace did not answer: {troubles[0].problem}"
            )
        return MessageTrace(
            id=unique_key,
            trace_topic=trace_topic,
            spans=spans_of((record for record, _ in pairs), unique_key),
            **partial_fields(troubles),
        )

    async def _unique_key(self, message_id: str, topic: str | None) -> str:
        if parse_offset_id(message_id) is None:
            return message_id
        try:
            record = (await self.find(message_id, topic)).record
        except NotFoundError:
            return message_id
        value = get_property(record.properties, b"UNIQ_KEY")
        return message_id if value is None else value.decode(errors="replace")

    async def track(self, message_id: str, topic: str | None = None) -> "MessageTrack":
        """Where it was consumed, judged by the groups' offsets."""
        from admin_api.messages.tracks import MessageTrack

        found = await self.find(message_id, topic)
        record = found.record
        address = (await self.directory.masters()).get(found.broker_name or "")
        if address is None:
            raise UnavailableError(
                f"{found.broker_name} accepts no writes now, so its groups' offsets are unknown."
            )
        try:
            groups = (await self.source.groups_of(address, record.topic))[:GROUPS_MAX]
        except AskError as error:
            raise UnavailableError(str(error)) from error
        asked = await self.gateway.ask_each(groups, lambda group: self._track(address, group, record))
        return MessageTrack(
            id=id_of(record),
            items=list(asked.answers.values()),
            **partial_fields(asked.troubles),
        )

    async def _track(self, address: str, group: str, record: Record) -> "TrackView":
        """Raises: AskError."""
        from admin_api.messages.tracks import broadcast_track, track_of

        members = await self.groups.connections(address, group)
        if members is not None and members.message_model == "BROADCASTING":
            return broadcast_track(group)
        offset = await self._offsets.committed(address, group, record.topic, record.queue_id)
        return track_of(group, record, offset, members)


def _window(
    items: list[MessageSummary], cursor: str | None, examined: int | None, troubles: tuple[Trouble, ...]
) -> MessageWindow:
    return MessageWindow(
        items=items,
        next_cursor=cursor,
        examined=examined,
        **partial_fields(troubles),
    )


def _viewers(brokers: BrokerSet, address: str) -> list[str]:
    """Who may have what this address stored: itself and, as positions are the same in a whole group, the rest
    of its group; every master where the address is none of the cluster.
    """
    name = _broker_name(brokers, address)
    if name is None:
        return list(brokers.masters.values())[:VIEWERS_MAX]
    own = [entry.address for entry in brokers.listed if entry.broker_name == name]
    own += [at for at, status in brokers.statuses.items() if status.broker_name == name]
    first = [address] if address in brokers.addresses else []
    return list(dict.fromkeys([*filter(None, [brokers.masters.get(name)]), *first, *own]))[:VIEWERS_MAX]


def _broker_name(brokers: BrokerSet, address: str) -> str | None:
    """The broker an address belongs to, also as a node's peers name it."""
    for entry in brokers.listed:
        if entry.address == address:
            return entry.broker_name
    for at, status in brokers.statuses.items():
        if address == at or any(peer.remoting_address == address for peer in status.peers):
            return status.broker_name
    return None


def _has_key(record: Record, topic: str, key: str, *, is_id: bool) -> bool:
    """A stock broker finds by a hash: it answers others as well."""
    wanted = key.encode(errors="replace")
    if record.topic != topic:
        return False
    if get_property(record.properties, b"UNIQ_KEY") == wanted:
        return True
    return not is_id and wanted in (get_property(record.properties, b"KEYS") or b"").split()
