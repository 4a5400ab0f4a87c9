"""What keeps old files of the log: messages that were stored for later and are not where they belong yet.

Each hold goes by the replicated state and the queues alone, so that it is the same on every node.
"""

from broker.context import BrokerContext
from broker.state.topics import HALF_TOPIC
from broker.timer.delay_levels import SCHEDULE_TOPIC
from broker.transactions.half import HALF_QUEUE_ID
from broker.transactions.ledger import GROUP
from commitlog.consume_queues import ConsumeQueues


def earliest_hold(context: BrokerContext) -> int | None:
    """The position of the earliest record that must stay, None when none must."""
    holds = (delayed_hold(context), half_hold(context), *(hold() for hold in context.log_holds))
    return min((position for position in holds if position is not None), default=None)


def delayed_hold(context: BrokerContext) -> int | None:
    """The first delayed message, of any level, that was not delivered."""
    queues, progress = context.log.queues, context.state.delay_offsets
    levels = range(1, len(context.config.delay_levels_ms) + 1)
    places = (position_at(queues, SCHEDULE_TOPIC, level - 1, progress.get(level, 0)) for level in levels)
    return min((position for position in places if position is not None), default=None)


def half_hold(context: BrokerContext) -> int | None:
    """The first transaction that may be open, as the leader last said."""
    offset = context.state.offsets.get(GROUP, HALF_TOPIC, HALF_QUEUE_ID) or 0
    return position_at(context.log.queues, HALF_TOPIC, HALF_QUEUE_ID, offset)


def position_at(queues: ConsumeQueues, topic: str, queue_id: int, offset: int) -> int | None:
    """Where the first message of a queue that the log has from an offset on stands; None without one."""
    queue = queues.get(topic, queue_id)
    units = queue.units(max(offset, queue.min_offset), 1) if queue is not None else []
    return units[0][0] if units else None
