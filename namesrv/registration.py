"""Requests of brokers: register, unregister, heartbeat, data version, members."""

import logging
import zlib
from collections.abc import Callable

import orjson

from namesrv.config import ORDER_TOPIC_NAMESPACE, KvConfig, NameServerConfig, NameServerSwitches
from namesrv.registration_body import (
    RegistrationError,
    parse_data_version,
    read_body,
    read_compressed_body,
)
from namesrv.rights import BrokerRights
from namesrv.route_info import (
    DataVersion,
    RefusedError,
    RegisterResult,
    Registration,
    RouteInfoManager,
    TablesFullError,
)
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
from remoting.slices import Steps

_CRC_MASK = 0x7FFFFFFF

_log = logging.getLogger(__name__)


class BrokerProcessor:
    """Answers 103, 104, 322, 901 and 904."""

    def __init__(
        self,
        tables: RouteInfoManager,
        kv_config: KvConfig,
        config: NameServerConfig,
        switches: NameServerSwitches,
        rights: BrokerRights,
        clock_ms: Callable[[], int],
    ) -> None:
        self._tables = tables
        self._kv_config = kv_config
        self._config = config
        self._switches = switches
        self._rights = rights
        self._clock_ms = clock_ms

    def register(self, router: Router) -> None:
        """Enter the handlers."""
        router.register(RequestCode.REGISTER_BROKER, self.register_broker)
        router.register(RequestCode.UNREGISTER_BROKER, self.unregister_broker)
        router.register(RequestCode.QUERY_DATA_VERSION, self.query_data_version)
        router.register(RequestCode.BROKER_HEARTBEAT, self.heartbeat)
        router.register(RequestCode.GET_BROKER_MEMBER_GROUP, self.members)

    def register_broker(
        self, request: RemotingCommand, connection: Connection
    ) -> Steps[RemotingCommand | None]:
        """103 REGISTER_BROKER: add the node; answer with its master and the ordered topics."""
        header = RegisterBrokerRequestHeader.parse(request.ext_fields)
        registrant = self._rights.registrant(header.broker_name, request, connection)
        registration = yield from self._read_registration(request, header)
        # The node would stay without a connection whose end removes it.
        if not connection.is_open:
            return None
        try:
            result = yield from self._tables.registering(registration, self._clock_ms(), registrant)
        except TablesFullError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        except RefusedError as error:
            connection.warn_once(f"registration {registration.addr}", str(error))
            raise RequestError(ResponseCode.NO_PERMISSION, str(error)) from None
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

    def unregister_broker(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """104 UNREGISTER_BROKER."""
        header = BrokerIdentityRequestHeader.parse(request.ext_fields)
        registrant = self._rights.registrant(header.broker_name, request, connection)
        try:
            is_known = self._tables.unregister(header.broker_name, header.broker_addr, registrant)
        except RefusedError as error:
            raise RequestError(ResponseCode.NO_PERMISSION, str(error)) from None
        if is_known:
            _log.info("broker %s %s unregistered", header.broker_name, header.broker_addr)
        return success_response(request)

    def query_data_version(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """322 QUERY_DATA_VERSION: has the broker's version changed? If not, asking counts as registering."""
        header = BrokerIdentityRequestHeader.parse(request.ext_fields)
        registrant = self._rights.registrant(header.broker_name, request, connection)
        try:
            asked = parse_data_version(request.body)
        except RegistrationError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        known = self._tables.data_version(header.broker_addr)
        if known == asked:
            self._tables.refresh(header.broker_name, header.broker_addr, self._clock_ms(), registrant)
        ext = {"changed": "false" if known == asked else "true"}
        return success_response(request, ext, known.to_json() if known is not None else b"")

    def heartbeat(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """904 BROKER_HEARTBEAT."""
        header = BrokerHeartbeatRequestHeader.parse(request.ext_fields)
        registrant = self._rights.registrant(header.broker_name, request, connection)
        self._tables.refresh(header.broker_name, header.broker_addr, self._clock_ms(), registrant)
        return success_response(request)

    def members(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """901 GET_BROKER_MEMBER_GROUP: one broker's nodes by id; no nodes for an unknown broker."""
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

    def _read_registration(
        self, request: RemotingCommand, header: RegisterBrokerRequestHeader
    ) -> Steps[Registration]:
        if header.body_crc32 and header.body_crc32 != zlib.crc32(request.body) & _CRC_MASK:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        try:
            version, topics = yield from self._read_body(request, header)
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
    ) -> Steps[tuple[DataVersion, dict[str, QueueData]]]:
        if header.compressed:
            return read_compressed_body(
                request.body, header.broker_name, self._config.register_body_bytes_max
            )
        return read_body(request.body, header.broker_name, request.version)

    def _log_result(self, registration: Registration, result: RegisterResult) -> None:
        node = (registration.broker_name, registration.broker_id, registration.addr)
        if result.is_ignored:
            _log.warning("broker %s id %d %s is of an earlier term than %s", *node, result.master_addr)
        elif result.is_new:
            _log.info("broker %s id %d %s registered", *node)
