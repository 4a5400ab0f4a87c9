"""Requests to the name server: configuration, key-value table, write permissions."""

from collections.abc import Mapping
from typing import Final

from admin_api.gateway import AskError, Gateway
from remoting.codes import RequestCode, ResponseCode
from remoting.fastjson import FastjsonError, loads
from remoting.headers.namesrv import (
    BrokerNameRequestHeader,
    KvItemRequestHeader,
    KvKeyRequestHeader,
    KvNamespaceRequestHeader,
)
from remoting.properties_text import PropertiesTextError, format_properties_text, parse_properties_text

_ITEMS_MAX: Final = 10_000


class NameServerSource:
    """Asks one name server. Everything raises AskError."""

    def __init__(self, gateway: Gateway, address: str) -> None:
        self._gateway = gateway
        self.address = address

    async def config(self) -> dict[str, str]:
        """319"""
        answer = await self._gateway.ask(self.address, RequestCode.GET_NAMESRV_CONFIG)
        try:
            return parse_properties_text(answer.body)
        except PropertiesTextError as error:
            raise AskError(self.address, f"its configuration cannot be read: {error}") from error

    async def configure(self, values: Mapping[str, str]) -> None:
        """318: all of these or none."""
        body = format_properties_text(values)
        await self._gateway.ask(self.address, RequestCode.UPDATE_NAMESRV_CONFIG, body=body)

    async def items(self, namespace: str) -> dict[str, str] | None:
        """219; None: there never was one."""
        code = RequestCode.GET_KVLIST_BY_NAMESPACE
        accept = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        ext = KvNamespaceRequestHeader(namespace).ext_fields()
        answer = await self._gateway.ask(self.address, code, ext, accept=accept)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        try:
            table = loads(answer.body)["table"]
        except (FastjsonError, KeyError, TypeError) as error:
            raise AskError(self.address, f"its items of {namespace} cannot be read: {error!r}") from error
        if not isinstance(table, dict) or len(table) > _ITEMS_MAX:
            raise AskError(self.address, f"its items of {namespace} are no table of at most {_ITEMS_MAX}")
        return {str(key): str(value) for key, value in table.items()}

    async def put(self, namespace: str, key: str, value: str) -> None:
        """100"""
        item = KvItemRequestHeader(namespace, key, value).ext_fields()
        await self._gateway.ask(self.address, RequestCode.PUT_KV_CONFIG, item)

    async def delete(self, namespace: str, key: str) -> None:
        """102"""
        item = KvKeyRequestHeader(namespace, key).ext_fields()
        await self._gateway.ask(self.address, RequestCode.DELETE_KV_CONFIG, item)

    async def allow_writes(self, broker_name: str, *, allow: bool) -> int:
        """205, 327: the number of topics whose permission changed."""
        code = RequestCode.ADD_WRITE_PERM_OF_BROKER if allow else RequestCode.WIPE_WRITE_PERM_OF_BROKER
        ext = BrokerNameRequestHeader(broker_name).ext_fields()
        answer = await self._gateway.ask(self.address, code, ext)
        count = answer.ext_fields.get("addTopicCount" if allow else "wipeTopicCount", "")
        return int(count) if count.isascii() and count.isdigit() and len(count) < 10 else 0
