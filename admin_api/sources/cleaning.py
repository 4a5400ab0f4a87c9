"""Deleting at once what retention would delete in its time: 306, 316, 329."""

from enum import StrEnum

from admin_api.gateway import Gateway
from remoting.codes import RequestCode

_TIMEOUT_MS = 10_000


class Garbage(StrEnum):
    """COMMIT_LOG: files past their time. CONSUME_QUEUES: files whose messages are gone. UNUSED_TOPICS: queues
    of topics that no longer exist."""

    COMMIT_LOG = "commit-log"
    CONSUME_QUEUES = "consume-queues"
    UNUSED_TOPICS = "unused-topics"


_CODES = {
    Garbage.COMMIT_LOG: RequestCode.DELETE_EXPIRED_COMMITLOG,
    Garbage.CONSUME_QUEUES: RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
    Garbage.UNUSED_TOPICS: RequestCode.CLEAN_UNUSED_TOPIC,
}


async def clean(gateway: Gateway, address: str, garbage: Garbage) -> str | None:
    """What it says went, if it says so. Raises: AskError."""
    answer = await gateway.ask(address, _CODES[garbage], timeout_ms=_TIMEOUT_MS)
    return answer.remark
