"""The bounds of the replicated tables. The leader holds to them before it proposes a change; what is in the
log is applied by every node, whatever its own configuration says.
"""

from broker.config import BrokerConfig
from broker.state.changes import (
    Change,
    CommitOffsets,
    InvalidChangeError,
    LockQueues,
    PutGroup,
    PutTopic,
    SetRequestMode,
)
from broker.state.locks import QUEUE_LOCKS_MAX
from broker.state.request_modes import REQUEST_MODES_MAX
from broker.state.tables import StateTables


def check_room(change: Change, tables: StateTables, config: BrokerConfig) -> None:
    """Raises InvalidChangeError where the change adds something to a table that is full."""
    match change:
        case PutTopic(topic) if topic.name not in tables.topics and len(tables.topics) >= config.topics_max:
            raise InvalidChangeError(f"there are topicsMax ({config.topics_max}) topics")
        case PutGroup(group) if group.name not in tables.groups and len(tables.groups) >= config.groups_max:
            raise InvalidChangeError(f"there are groupsMax ({config.groups_max}) groups")
        case CommitOffsets(group_name, topic_name, offsets):
            known = tables.offsets.queues(group_name, topic_name)
            new = sum(queue_id not in known for queue_id in offsets)
            if new and len(tables.offsets) + new > config.offsets_max:
                raise InvalidChangeError(f"there are offsetsMax ({config.offsets_max}) consumer offsets")
        case LockQueues(group_name, _, queues, True):
            keys = ((group_name, (topic, queue)) for topic, ids in queues.items() for queue in ids)
            if len(tables.locks) + sum(key not in tables.locks for key in keys) > QUEUE_LOCKS_MAX:
                raise InvalidChangeError(f"there are {QUEUE_LOCKS_MAX} locked queues")
        case SetRequestMode(mode) if tables.request_modes.get(mode.topic, mode.group) is None:
            if len(tables.request_modes) >= REQUEST_MODES_MAX:
                raise InvalidChangeError(f"there are {REQUEST_MODES_MAX} message request modes")
        case _:
            pass
