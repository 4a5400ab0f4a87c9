"""The locks of ordered consumption: the broker lets one client of a group consume a queue (LOCK_BATCH_MQ and
UNLOCK_BATCH_MQ; RebalanceImpl, ProcessQueue). Pure.
"""

from collections.abc import Iterable
from typing import Any, Final

import orjson

from ledgermq.client.errors import UnreadableError
from remoting.client.routes import MessageQueue
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.fastjson import FastjsonError, loads

LOCK_RENEW_S: Final = 20.0
LOCK_AGAIN_S: Final = 2.0
"""After a renewal that was not answered: the next regular one would be too late."""
LOCK_VALID_S: Final = 30.0
"""Brokers keep a lock for 60 s after its last renewal. Half of that is left for a handler that has begun."""


class QueueLock:
    """A lock that the broker has granted. Times are in seconds of one monotonic clock.

    asked_s: when the request was sent that was granted.
    """

    def __init__(self, asked_s: float) -> None:
        self._asked_s = asked_s

    def renewed(self, asked_s: float) -> None:
        self._asked_s = asked_s

    def is_valid(self, now_s: float) -> bool:
        """Whether no other client can have the queue. One that was not renewed in time is not taken up again:
        another client may have held it meanwhile, so the queue is begun again at the stored offset.
        """
        return now_s - self._asked_s < LOCK_VALID_S


def lock_command(
    code: RequestCode, group: str, client_id: str, queues: Iterable[MessageQueue]
) -> RemotingCommand:
    """41 or 42 for queues of one broker."""
    body = {"clientId": client_id, "consumerGroup": group, "mqSet": [queue_json(each) for each in queues]}
    return RemotingCommand(code, body=orjson.dumps(body))


def locked_queues(answer: RemotingCommand) -> set[MessageQueue]:
    """The queues that an answer to 41 grants. Raises UnreadableError."""
    try:
        rows = loads(answer.body).get("lockOKMQSet") or ()
        return {read_queue(row) for row in rows}
    except (FastjsonError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise UnreadableError(f"the locks of a broker cannot be read: {error!r}") from error


def queue_json(queue: MessageQueue) -> dict[str, Any]:
    """A queue as RocketMQ's JSON bodies have it."""
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


def read_queue(row: Any) -> MessageQueue:
    """Raises KeyError, TypeError, ValueError."""
    return MessageQueue(str(row["topic"]), str(row["brokerName"]), int(row["queueId"]))
