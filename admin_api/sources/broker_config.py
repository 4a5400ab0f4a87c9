"""A broker's configuration: 26 shows it, 25 changes keys of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from admin_api.gateway import AskError, Gateway
from remoting.codes import RequestCode
from remoting.properties_text import PropertiesTextError, format_properties_text, parse_properties_text

RUNTIME_KEYS_FIELD: Final = "runtimeKeys"
"""In LedgerMQ's answer to 26: the keys that can change while it runs, with commas between."""
CHANGE_TIMEOUT_MS: Final = 5_000
"""A change waits for a majority, and a follower hands it on to the leader first."""


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Every key with its value in force. `runtime_keys` is None of a broker that does not tell them."""

    values: Mapping[str, str]
    runtime_keys: frozenset[str] | None


class ConfigSource:
    """Asks one broker. Everything raises AskError."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def read(self, address: str) -> BrokerSettings:
        """26"""
        answer = await self._gateway.ask(address, RequestCode.GET_BROKER_CONFIG)
        try:
            values = parse_properties_text(answer.body)
        except PropertiesTextError as error:
            raise AskError(address, f"{address}: its configuration cannot be read: {error}") from error
        told = answer.ext_fields.get(RUNTIME_KEYS_FIELD)
        return BrokerSettings(values, None if told is None else frozenset(told.split(",")))

    async def change(self, address: str, values: Mapping[str, str]) -> None:
        """25: all of these keys or none."""
        body = format_properties_text(values)
        code = RequestCode.UPDATE_BROKER_CONFIG
        await self._gateway.ask(address, code, body=body, timeout_ms=CHANGE_TIMEOUT_MS)
