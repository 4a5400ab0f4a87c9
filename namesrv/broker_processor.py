"""Requests of brokers: register, unregister, heartbeat, data version, members."""

import logging
import zlib
from collections.abc import Callable

import orjson

from namesrv.config import NameServerConfig, NameServerSwitches
from namesrv.kv_config import ORDER_TOPIC_NAMESPACE, KvConfig
from namesrv.registration import (
    DataVersion,
    Registration,
    RegistrationError,
    parse_body,
    parse_compressed_body,
    parse_data_version,
)
from namesrv.route_info import RegisterResult, RouteInfoManager, TablesFullError
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, success_response
from remoting.connection import Connection
from remoting.errors import RequestError
from remoting.headers.namesrv import (
    BrokerHeartbeatRequestHeader,
    BrokerIdentityRequestHeader,
    BrokerMemberGroupRequestHeader,
    RegisterBrokerRequestHeader,
)
from remoting.route import QueueData
from remoting.router import Router

_log = logging.getLogger(__name__)
_CRC_MASK = 0x7FFFFFFF


class BrokerProcessor:
    """Answers 103, 104, 322, 901 and 904."""

    def __init__(
        self,
        tables: RouteInfoManager,
        kv_config: KvConfig,
        config: NameServerConfig,
        switches: NameServerSwitches,
        clock_ms: Callable[[], int],
    ) -> None:
        self._tables = tables
        self._kv_config = kv_config
        self._config = config
        self._switches = switches
        self._clock_ms = clock_ms

    def register(self, router: Router) -> None:
        """Enter the handlers."""
        router.register(RequestCode.REGISTER_BROKER, self.register_broker)
        router.register(RequestCode.UNREGISTER_BROKER, self.unregister_broker)
        router.register(RequestCode.QUERY_DATA_VERSION, self.query_data_version)
        router.register(RequestCode.BROKER_HEARTBEAT, self.heartbeat)
        router.register(RequestCode.GET_BROKER_MEMBER_GROUP, self.members)

    def register_broker(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """103: add the node; answer with its master and the ordered topics."""
        registration = self._read_registration(request)
        try:
            result = self._tables.register(registration, self._clock_ms(), connection.connection_id)
        except TablesFullError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        self._log_result(registration, result)
        ext: dict[str, str] = {}
        if result.ha_server_addr is not None:
            ext["haServerAddr"] = result.ha_server_addr
        if result.master_addr is not None:
            ext["masterAddr"] = result.master_addr
        body = b""
        if self._switches.return_order_topic_config_to_broker:
            body = orjson.dumps({"table": self._kv_config.namespace(ORDER_TOPIC_NAMESPACE) or {}})
        return success_response(request, ext, body)

    def unregister_broker(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """104."""
        header = BrokerIdentityRequestHeader.parse(request.ext_fields)
        if self._tables.unregister(header.broker_addr):
            _log.info("broker %s %s unregistered", header.broker_name, header.broker_addr)
        return success_response(request)

    def query_data_version(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """322: has the broker's version changed? If not, asking counts as registering."""
        header = BrokerIdentityRequestHeader.parse(request.ext_fields)
        try:
            asked = parse_data_version(request.body)
        except RegistrationError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        known = self._tables.data_version(header.broker_addr)
        if known == asked:
            self._tables.refresh(header.broker_addr, self._clock_ms())
        ext = {"changed": "false" if known == asked else "true"}
        return success_response(request, ext, known.to_json() if known is not None else b"")

    def heartbeat(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """904."""
        header = BrokerHeartbeatRequestHeader.parse(request.ext_fields)
        self._tables.refresh(header.broker_addr, self._clock_ms())
        return success_response(request)

    def members(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """901: one broker's nodes by id; no nodes for an unknown broker."""
        header = BrokerMemberGroupRequestHeader.parse(request.ext_fields)
        broker = self._tables.members(header.broker_name)
        addrs = dict(sorted(broker.broker_addrs.items())) if broker is not None else {}
        group = {
            "brokerAddrs": addrs,
            "brokerName": header.broker_name,
            "cluster": header.cluster_name,
        }
        body = orjson.dumps({"brokerMemberGroup": group}, option=orjson.OPT_NON_STR_KEYS)
        return success_response(request, body=body)

    def _read_registration(self, request: RemotingCommand) -> Registration:
        header = RegisterBrokerRequestHeader.parse(request.ext_fields)
        if header.body_crc32 and header.body_crc32 != zlib.crc32(request.body) & _CRC_MASK:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        try:
            version, topics = self._read_body(request, header)
        except RegistrationError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        return Registration(
            header.cluster_name,
            header.broker_name,
            header.broker_id,
            header.broker_addr,
            header.ha_server_addr,
            header.heartbeat_timeout_ms or self._config.broker_expiry_ms,
            version,
            topics,
        )

    def _read_body(
        self, request: RemotingCommand, header: RegisterBrokerRequestHeader
    ) -> tuple[DataVersion, dict[str, QueueData]]:
        if header.compressed:
            return parse_compressed_body(
                request.body, header.broker_name, self._config.register_body_bytes_max
            )
        return parse_body(request.body, header.broker_name, request.version)

    def _log_result(self, registration: Registration, result: RegisterResult) -> None:
        node = (registration.broker_name, registration.broker_id, registration.addr)
        if result.is_ignored:
            _log.warning("broker %s id %d %s is of an earlier term than %s", *node, result.master_addr)
        elif result.is_new:
            _log.info("broker %s id %d %s registered", *node)
