"""What operators may have deleted at once: DELETE_EXPIRED_COMMITLOG and CLEAN_EXPIRED_CONSUMEQUEUE. The remark
of an answer says how much went.
"""

from broker.context import BrokerContext
from broker.retention import Retention
from remoting.codes import RequestCode
from remoting.command import RemotingCommand, success_response
from remoting.connection import Connection


class CleaningProcessor:
    """Asks the retention of this node; what the leader decides, the others follow."""

    def __init__(self, retention: Retention) -> None:
        self._retention = retention

    async def delete_files(self, request: RemotingCommand, _connection: Connection) -> RemotingCommand:
        """DELETE_EXPIRED_COMMITLOG."""
        files = await self._retention.delete_expired()
        return success_response(request, remark=f"{files} files deleted")

    async def clean_queues(self, request: RemotingCommand, _connection: Connection) -> RemotingCommand:
        """CLEAN_EXPIRED_CONSUMEQUEUE."""
        queues = await self._retention.clean_queues()
        return success_response(request, remark=f"{queues} queues lose files")


def register(context: BrokerContext) -> None:
    if context.retention is None:
        return  # a plain log keeps everything, and says so
    processor = CleaningProcessor(context.retention)
    context.router.register(RequestCode.DELETE_EXPIRED_COMMITLOG, processor.delete_files)
    context.router.register(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, processor.clean_queues)
