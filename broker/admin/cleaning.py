"""What operators may have deleted at once: DELETE_EXPIRED_COMMITLOG, CLEAN_EXPIRED_CONSUMEQUEUE and
CLEAN_UNUSED_TOPIC. The remark of an answer says how much went.
"""

from broker.context import BrokerContext
from broker.store.retention import Retention
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, success_response
from remoting.connection import Connection
from remoting.errors import RequestError

KEEPS_ALL = "a plain log keeps everything: set enableDLegerCommitLog to have old files deleted"


class CleaningProcessor:
    """Asks the retention of this node; what the leader decides, the others follow."""

    def __init__(self, retention: Retention | None) -> None:
        self._retention = retention

    async def delete_files(self, request: RemotingCommand, _connection: Connection) -> RemotingCommand:
        """DELETE_EXPIRED_COMMITLOG."""
        files = await self._known().delete_expired()
        return success_response(request, remark=f"{files} files deleted")

    async def clean_queues(self, request: RemotingCommand, _connection: Connection) -> RemotingCommand:
        """CLEAN_EXPIRED_CONSUMEQUEUE."""
        queues = await self._known().clean_queues()
        return success_response(request, remark=f"{queues} queues lose files")

    async def clean_topics(self, request: RemotingCommand, _connection: Connection) -> RemotingCommand:
        """CLEAN_UNUSED_TOPIC. A deleted topic lost its configuration and offsets at once; its queues go when
        no message of theirs is left, for until then a topic made again goes on at their offsets.
        """
        topics = 0 if self._retention is None else await self._retention.clean_unused_topics()
        return success_response(request, remark=f"{topics} topics forgotten")

    def _known(self) -> Retention:
        if self._retention is None:
            raise RequestError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, KEEPS_ALL)
        return self._retention


def register(context: BrokerContext) -> None:
    processor = CleaningProcessor(context.retention)
    context.router.register(RequestCode.DELETE_EXPIRED_COMMITLOG, processor.delete_files)
    context.router.register(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, processor.clean_queues)
    context.router.register(RequestCode.CLEAN_UNUSED_TOPIC, processor.clean_topics)
