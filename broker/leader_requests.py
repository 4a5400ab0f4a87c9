"""Operators' changes that reach a follower: it hands them on to the leader.

mqadmin and the Dashboard send some changes to every node of a broker (deleting a group, they delete its
topics on the slaves too), others to the address they know as the master's, which it may not be any more.
"""

from typing import Final

from broker.context import BrokerContext
from broker.forwarding import Forwarder
from broker.readiness import Readiness
from remoting.command import RemotingCommand
from remoting.connection import Connection
from remoting.router import Handler, HandlerResult

FORWARD_LIMIT_S: Final = 4.0
"""The tools wait for 5 s."""


class LeaderRequests:
    """Makes handlers that have the leader answer. Without one the request is refused, and the remark says who
    leads as far as this node knows.
    """

    def __init__(self, context: BrokerContext) -> None:
        self._log = context.log
        self._readiness = Readiness.of(context)
        self._forwarder = Forwarder(context)

    def handler(self, answer: Handler) -> Handler:
        """A handler that runs `answer` on the writable leader only."""

        def handle(request: RemotingCommand, connection: Connection) -> HandlerResult:
            return answer(request, connection) if self._log.is_writable() else self._forward(request)

        return handle

    async def _forward(self, request: RemotingCommand) -> RemotingCommand:
        answer = None
        if self._forwarder.may_forward(request):
            answer = await self._forwarder.ask_leader(request, FORWARD_LIMIT_S)
        if answer is None:
            raise self._readiness.refusal()
        return answer
