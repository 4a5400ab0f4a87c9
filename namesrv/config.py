"""The configuration of a name server, and the requests by which administrators show and change it.

`NameServerConfig` is fixed at the start. The two switches may change while it runs. The key-value table by
namespace is kept in a file (`KVConfigManager`, `kvConfig.json` of RocketMQ).
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, error_response, success_response
from remoting.connection import Connection
from remoting.errors import RequestError
from remoting.headers.namesrv import KvItemRequestHeader, KvKeyRequestHeader, KvNamespaceRequestHeader
from remoting.properties_text import PropertiesTextError, format_properties_text, parse_properties_text
from remoting.quotas import Quota, QuotaRules
from remoting.router import Router
from remoting.tls import ServerTlsSettings

ORDER_TOPIC_NAMESPACE = "ORDER_TOPIC_CONFIG"
_SWITCH_NAMES = {
    "orderMessageEnable": "order_message_enable",
    "returnOrderTopicConfigToBroker": "return_order_topic_config_to_broker",
}
_BOOLEANS = {"true": True, "false": False}


ADDRESS_QUOTA = Quota(requests_per_s=20_000, bytes_per_s=1 << 30, connections_max=4_000)


@dataclass(frozen=True, slots=True)
class NameServerConfig:
    """Fixed for the life of the process.

    host, port: where it listens; port 0 lets the system choose.
    tls: on that port.
    kv_config: the file that keeps the key-value table; without one the table lives in memory only.
    broker_expiry_ms: a broker that has not registered for so long is dropped, unless it requested another
        time.
    expiry_check_interval_ms: period of the one timer that checks for such brokers.
    brokers_max, topics_max, kv_items_max: registrations or items beyond these are refused.
    kv_bytes_max: of all keys and values of the key-value table.
    register_body_bytes_max: a compressed registration may not grow beyond this; no frame is larger.
    broker_identities: who may register which broker name (`rights`); empty: every host any.
    accounts: file of those who sign requests (`accounts`); None: administrators need not sign.
    quotas: of each client address; requests of brokers are slowed, never refused.
    """

    host: str = "127.0.0.1"
    port: int = 9876
    kv_config: Path | None = None
    broker_expiry_ms: int = 120_000
    expiry_check_interval_ms: int = 5_000
    brokers_max: int = 2_000
    topics_max: int = 200_000
    kv_items_max: int = 10_000
    kv_bytes_max: int = 4 * 1024 * 1024
    register_body_bytes_max: int = 16 * 1024 * 1024
    broker_identities: Mapping[str, frozenset[str]] = field(default_factory=dict)
    accounts: Path | None = None
    tls: ServerTlsSettings = field(default_factory=ServerTlsSettings)
    quotas: QuotaRules = field(default_factory=lambda: QuotaRules(ADDRESS_QUOTA))


@dataclass(slots=True)
class NameServerSwitches:
    """Changed by request 318 and lost at the end of the process. Names and defaults are RocketMQ's.

    order_message_enable: send clients the queues of an ordered topic (`ORDER_TOPIC_CONFIG`) with its route.
    return_order_topic_config_to_broker: send brokers all of them in answers to registrations.
    """

    order_message_enable: bool = False
    return_order_topic_config_to_broker: bool = True


class KvConfigError(Exception):
    """The file cannot be read as a table, or the table is full."""


class KvConfig:
    """Every change is on disk before it is answered; a change that cannot be written is not made."""

    def __init__(self, path: Path | None, items_max: int = 10_000, bytes_max: int = 4 * 1024 * 1024) -> None:
        """Read the table.

        Raises:
            KvConfigError: the file is there but holds no table.
        """
        self._path = path
        self._items_max = items_max
        self._bytes_max = bytes_max
        self.table: Mapping[str, Mapping[str, str]] = _load(path) if path is not None else {}
        """Items by namespace and key: read only, replaced as a whole."""

    def get(self, namespace: str, key: str) -> str | None:
        """The value, or None."""
        return self.table.get(namespace, {}).get(key)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value.

        Raises:
            KvConfigError: the table is full.
            OSError: the file cannot be written.
        """
        is_new = self.get(namespace, key) is None
        if is_new and sum(map(len, self.table.values())) >= self._items_max:
            raise KvConfigError(f"the table is full: {self._items_max} items")
        known = sum(len(k) + len(v) for items in self.table.values() for k, v in items.items())
        if known + len(key) + len(value) > self._bytes_max:
            raise KvConfigError(f"the table is full: {self._bytes_max} bytes")
        self._change({**self.table, namespace: {**self.table.get(namespace, {}), key: value}})

    def delete(self, namespace: str, key: str) -> None:
        """Remove a value; nothing happens if there is none.

        Raises:
            OSError: the file cannot be written.
        """
        if self.get(namespace, key) is None:
            return
        rest = {k: v for k, v in self.table[namespace].items() if k != key}
        self._change({**self.table, namespace: rest})

    def _change(self, table: Mapping[str, Mapping[str, str]]) -> None:
        if self._path is not None:
            _save(self._path, orjson.dumps({"configTable": table}, option=orjson.OPT_INDENT_2))
        self.table = table


def _load(path: Path) -> dict[str, dict[str, str]]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    try:
        table: dict[str, dict[str, Any]] = orjson.loads(data)["configTable"]
        return {str(n): {str(k): str(v) for k, v in items.items()} for n, items in table.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise KvConfigError(f"{path} is not a table of namespaces: {error!r}") from None


def _save(path: Path, data: bytes) -> None:
    """Replace a file atomically: a crash leaves the old table or the new one.

    The data is synced before the rename, and the directory after it: a rename that reached the disk earlier
    than the data would leave an empty table.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    side_file = path.with_name(path.name + ".tmp")
    with side_file.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    side_file.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class ConfigProcessor:
    """Answers 100, 101, 102, 219, 318 and 319."""

    def __init__(self, kv_config: KvConfig, config: NameServerConfig, switches: NameServerSwitches) -> None:
        self._kv_config = kv_config
        self._config = config
        self._switches = switches

    def register(self, router: Router) -> None:
        """Enter the handlers."""
        router.register(RequestCode.PUT_KV_CONFIG, self.put)
        router.register(RequestCode.GET_KV_CONFIG, self.get)
        router.register(RequestCode.DELETE_KV_CONFIG, self.delete)
        router.register(RequestCode.GET_KVLIST_BY_NAMESPACE, self.namespace)
        router.register(RequestCode.UPDATE_NAMESRV_CONFIG, self.update_config)
        router.register(RequestCode.GET_NAMESRV_CONFIG, self.show_config)

    def put(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """100 PUT_KV_CONFIG."""
        header = KvItemRequestHeader.parse(request.ext_fields)
        try:
            self._kv_config.put(header.namespace, header.key, header.value)
        except (KvConfigError, OSError) as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        return success_response(request)

    def get(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """101 GET_KV_CONFIG."""
        header = KvKeyRequestHeader.parse(request.ext_fields)
        value = self._kv_config.get(header.namespace, header.key)
        if value is None:
            remark = f"No config item, Namespace: {header.namespace} Key: {header.key}"
            return error_response(request, ResponseCode.QUERY_NOT_FOUND, remark)
        return success_response(request, {"value": value})

    def delete(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """102 DELETE_KV_CONFIG."""
        header = KvKeyRequestHeader.parse(request.ext_fields)
        try:
            self._kv_config.delete(header.namespace, header.key)
        except OSError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        return success_response(request)

    def namespace(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """219 GET_KVLIST_BY_NAMESPACE."""
        namespace = KvNamespaceRequestHeader.parse(request.ext_fields).namespace
        items = self._kv_config.table.get(namespace)
        if items is None:
            remark = f"No config item, Namespace: {namespace}"
            return error_response(request, ResponseCode.QUERY_NOT_FOUND, remark)
        return success_response(request, body=orjson.dumps({"table": dict(items)}))

    def update_config(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """318 UPDATE_NAMESRV_CONFIG: changes the two switches. With any other name nothing changes."""
        try:
            changes = parse_properties_text(request.body)
        except PropertiesTextError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        for name, text in changes.items():
            if name not in _SWITCH_NAMES:
                raise RequestError(ResponseCode.NO_PERMISSION, f"Can not update config {name} while running")
            if text not in _BOOLEANS:
                raise RequestError(ResponseCode.SYSTEM_ERROR, f"{name} is {text[:40]!r}, not true or false")
        for name, text in changes.items():
            setattr(self._switches, _SWITCH_NAMES[name], _BOOLEANS[text])
        return success_response(request)

    def show_config(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """319 GET_NAMESRV_CONFIG."""
        values = {
            "bindAddress": self._config.host,
            "listenPort": str(self._config.port),
            "tlsMode": self._config.tls.mode_in_force,
            "tlsClientAuth": self._config.tls.client_auth,
            "kvConfigPath": str(self._config.kv_config or ""),
            "brokerIdentities": ",".join(sorted(self._config.broker_identities)),
            "accountsPath": str(self._config.accounts or ""),
            "addressRequestsPerSecond": str(self._config.quotas.address.requests_per_s),
            "addressConnectionsMax": str(self._config.quotas.address.connections_max),
            "scanNotActiveBrokerInterval": str(self._config.expiry_check_interval_ms),
        }
        for name, attribute in _SWITCH_NAMES.items():
            values[name] = str(getattr(self._switches, attribute)).lower()
        return success_response(request, body=format_properties_text(values))
