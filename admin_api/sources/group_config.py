"""A node's configuration, and the requests that move leadership: 25, 26, 65002."""

from collections.abc import Mapping

from admin_api.gateway import AskError, Gateway
from remoting.codes import RequestCode
from remoting.properties_text import PropertiesTextError, format_properties_text, parse_properties_text


async def read_config(gateway: Gateway, address: str) -> dict[str, str]:
    """Every key with its value in force (26). Raises: AskError."""
    answer = await gateway.ask(address, RequestCode.GET_BROKER_CONFIG)
    try:
        return parse_properties_text(answer.body)
    except PropertiesTextError as error:
        raise AskError(address, f"its configuration cannot be read: {error}") from error


async def write_config(gateway: Gateway, address: str, values: Mapping[str, str]) -> None:
    """25; a LedgerMQ leader answers once its group has the change. Raises: AskError."""
    await gateway.ask(address, RequestCode.UPDATE_BROKER_CONFIG, body=format_properties_text(values))


async def begin_transfer(gateway: Gateway, leader_address: str, node_id: str) -> None:
    """65002, answered when the transfer has begun. Raises: AskError."""
    await gateway.ask(leader_address, RequestCode.LEDGERMQ_TRANSFER_LEADER, {"transferee": node_id})
