"""The node itself for operators: 28 its figures, and our own LEDGERMQ_NODE_STATUS (65001) and
LEDGERMQ_TRANSFER_LEADER (65002).
"""

import asyncio
from functools import partial

from broker.admin_answers import json_answer
from broker.context import BrokerContext
from broker.node_status import NodeStatusBuilder
from broker.process_figures import process_figures
from broker.replication import leader_hint
from broker.runtime_info import RuntimeInfo
from dledger.core.types import ResponseCode as EngineCode
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, success_response
from remoting.connection import Connection
from remoting.errors import RequestError
from remoting.headers.fields import RequestHeader, request_header


@request_header
class TransferLeaderRequestHeader(RequestHeader):
    """Code 65002: the id of the member that is to lead."""

    transferee: str


class BrokerAdmin:
    """Answers operators' questions about this node."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._status = NodeStatusBuilder(context)
        self._runtime_info = RuntimeInfo(context, lambda: asyncio.get_running_loop().time())
        context.services += self._runtime_info.services

    def runtime_info(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """28 GET_BROKER_RUNTIME_INFO"""
        return json_answer(request, {"table": self._runtime_info.table()})

    def cold_data(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """2003 GET_COLD_DATA_FLOW_CTR_INFO: nobody is slowed down for reading cold data; the tools take an
        empty answer as that.
        """
        return success_response(request)

    def node_status(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """65001 LEDGERMQ_NODE_STATUS"""
        return success_response(request, body=self._status.build().to_json())

    def transfer_leader(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """65002 LEDGERMQ_TRANSFER_LEADER: answered when the transfer has begun."""
        transferee = TransferLeaderRequestHeader.parse(request.ext_fields).transferee
        engine = self._context.engine
        if engine is None:
            raise RequestError(
                ResponseCode.NO_PERMISSION, "this node has no group to hand leadership over in"
            )
        code = engine.transfer_leadership(transferee)
        if code is EngineCode.SUCCESS:
            return success_response(request)
        if code is EngineCode.NOT_LEADER:
            hint = leader_hint(engine, self._context.config.dledger_self_id)
            raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, f"only the leader hands over: {hint}")
        if code in (EngineCode.UNKNOWN_MEMBER, EngineCode.UNEXPECTED_MEMBER):
            raise RequestError(
                ResponseCode.INVALID_PARAMETER, f"{transferee[:64]} is no other member of the group"
            )
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"the transfer was refused: {code.name}")


def register(context: BrokerContext) -> None:
    admin, router = BrokerAdmin(context), context.router
    context.runtime_figures.append(partial(process_figures, context.clock))
    router.register(RequestCode.GET_BROKER_RUNTIME_INFO, admin.runtime_info)
    router.register(RequestCode.GET_COLD_DATA_FLOW_CTR_INFO, admin.cold_data)
    router.register(RequestCode.LEDGERMQ_NODE_STATUS, admin.node_status)
    router.register(RequestCode.LEDGERMQ_TRANSFER_LEADER, admin.transfer_leader)
