"""What became of one message in one group, judged by the group's offset. Pure."""

from admin_api.schemas.message_tracks import ConsumedState, TrackView
from admin_api.sources.consumer_groups import Connections
from remoting.record import Record, get_property


def broadcast_track(group: str) -> TrackView:
    problem = "its members keep their offsets themselves"
    return TrackView(group=group, state=ConsumedState.UNKNOWN, offset=None, is_online=True, problem=problem)


def track_of(group: str, record: Record, offset: int | None, members: Connections | None) -> TrackView:
    """`members` is None where none is connected."""
    state = _state(record, offset, members)
    return TrackView(group=group, state=state, offset=offset, is_online=members is not None)


def _state(record: Record, offset: int | None, members: Connections | None) -> ConsumedState:
    if offset is None or offset <= record.queue_offset:
        return ConsumedState.OFFLINE if members is None else ConsumedState.NOT_YET
    row = None if members is None else members.subscription_table.get(record.topic)
    if row is None or row.expression_type == "SQL92" or row.sub_string.strip() in ("", "*"):
        return ConsumedState.CONSUMED
    wanted = {tag.strip() for tag in row.sub_string.split("||")}
    tag = (get_property(record.properties, b"TAGS") or b"").decode(errors="replace")
    return ConsumedState.CONSUMED if tag in wanted else ConsumedState.FILTERED
