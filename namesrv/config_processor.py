"""Administrators' requests about the key-value table and the name server's own configuration."""

import orjson

from namesrv.config import NameServerConfig, NameServerSwitches
from namesrv.kv_config import KvConfig, KvConfigError
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, error_response, success_response
from remoting.connection import Connection
from remoting.errors import RequestError
from remoting.headers.namesrv import KvItemRequestHeader, KvKeyRequestHeader, KvNamespaceRequestHeader
from remoting.properties_text import PropertiesTextError, format_properties_text, parse_properties_text
from remoting.router import Router

_SWITCH_NAMES = {
    "orderMessageEnable": "order_message_enable",
    "returnOrderTopicConfigToBroker": "return_order_topic_config_to_broker",
}
_BOOLEANS = {"true": True, "false": False}


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
        """100."""
        header = KvItemRequestHeader.parse(request.ext_fields)
        try:
            self._kv_config.put(header.namespace, header.key, header.value)
        except (KvConfigError, OSError) as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        return success_response(request)

    def get(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """101."""
        header = KvKeyRequestHeader.parse(request.ext_fields)
        value = self._kv_config.get(header.namespace, header.key)
        if value is None:
            remark = f"No config item, Namespace: {header.namespace} Key: {header.key}"
            return error_response(request, ResponseCode.QUERY_NOT_FOUND, remark)
        return success_response(request, {"value": value})

    def delete(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """102."""
        header = KvKeyRequestHeader.parse(request.ext_fields)
        try:
            self._kv_config.delete(header.namespace, header.key)
        except OSError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        return success_response(request)

    def namespace(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """219."""
        namespace = KvNamespaceRequestHeader.parse(request.ext_fields).namespace
        items = self._kv_config.namespace(namespace)
        if items is None:
            remark = f"No config item, Namespace: {namespace}"
            return error_response(request, ResponseCode.QUERY_NOT_FOUND, remark)
        return success_response(request, body=orjson.dumps({"table": dict(items)}))

    def update_config(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """318: the two switches can be turned; every other name is refused, and then nothing changes."""
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
        """319."""
        values = {
            "bindAddress": self._config.host,
            "listenPort": str(self._config.port),
            "kvConfigPath": str(self._config.kv_config or ""),
            "scanNotActiveBrokerInterval": str(self._config.expiry_check_interval_ms),
        }
        for name, attribute in _SWITCH_NAMES.items():
            values[name] = str(getattr(self._switches, attribute)).lower()
        return success_response(request, body=format_properties_text(values))
