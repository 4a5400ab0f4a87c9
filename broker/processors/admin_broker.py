"""The node itself for operators: 26 its configuration, 28 its figures, and our own LEDGERMQ_NODE_STATUS
(65001) and LEDGERMQ_TRANSFER_LEADER (65002).
"""

import asyncio
import shutil

import orjson

from broker.admin_answers import json_answer
from broker.context import BrokerContext
from broker.node_status import NodeStatusBuilder
from broker.rates import RateMeter
from broker.replication import leader_hint
from dledger.core.types import ResponseCode as EngineCode
from remoting.codes import RequestCode, ResponseCode
from remoting.command import OWN_VERSION, RemotingCommand, success_response
from remoting.connection import Connection
from remoting.errors import RequestError
from remoting.header_fields import RequestHeader, request_header

PRODUCT = "LedgerMQ"
SEQUENCED_SENDS = "sequencedSends"
"""Among the figures: whether LEDGERMQ_SEND_SEQUENCED is understood here. No other broker has it."""


@request_header
class TransferLeaderRequestHeader(RequestHeader):
    """Code 65002: the id of the member that is to lead."""

    transferee: str


class BrokerAdmin:
    """Answers operators' questions about this node."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._status = NodeStatusBuilder(context)
        stats = context.stats
        self._rates = RateMeter(lambda: (stats.messages_put, stats.messages_got))
        context.services.append(self._rates)

    def config(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """26 GET_BROKER_CONFIG"""
        text = "".join(f"{key}={value}\n" for key, value in self._context.config.to_properties().items())
        version = orjson.dumps(self._context.state.data_version.to_json()).decode()
        return success_response(request, {"version": version}, text.encode())

    def runtime_info(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """28 GET_BROKER_RUNTIME_INFO: the figures there are; what is not measured is left out."""
        stats, log = self._context.stats, self._context.log
        now_s = asyncio.get_running_loop().time()
        puts, gets = (" ".join(f"{rate:.2f}" for rate in self._rates.rates(n, now_s)) for n in (0, 1))
        usage = shutil.disk_usage(self._context.config.store_path_root_dir)
        table = {
            "brokerVersionDesc": PRODUCT,
            "brokerVersion": str(OWN_VERSION),
            "brokerActive": str(log.is_writable()).lower(),
            "bootTimestamp": str(stats.started_at_ms),
            "msgPutTotalTodayNow": str(stats.messages_put),
            "msgGetTotalTodayNow": str(stats.messages_got),
            "putMessageTimesTotal": str(stats.messages_put),
            "putMessageSizeTotal": str(stats.bytes_put),
            "putMessageFailedTimes": str(stats.puts_failed),
            "putTps": puts,
            "getTotalTps": gets,
            "getTransferredTps": gets,
            "getTransferedTps": gets,
            "commitLogMinOffset": str(log.min_position),
            "commitLogMaxOffset": str(log.max_position),
            "commitLogDiskRatio": f"{usage.used / usage.total:.4f}",
            "topicNums": str(len(self._context.state.topics)),
            SEQUENCED_SENDS: "true",
            "sequencedWriters": str(len(self._context.state.writers)),
        }
        return json_answer(request, {"table": table})

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
    router.register(RequestCode.GET_BROKER_CONFIG, admin.config)
    router.register(RequestCode.GET_BROKER_RUNTIME_INFO, admin.runtime_info)
    router.register(RequestCode.LEDGERMQ_NODE_STATUS, admin.node_status)
    router.register(RequestCode.LEDGERMQ_TRANSFER_LEADER, admin.transfer_leader)
