"""Moving the leadership of a LedgerMQ group: 65002."""

from admin_api.gateway import Gateway
from remoting.codes import RequestCode


async def begin_transfer(gateway: Gateway, leader_address: str, node_id: str) -> None:
    """Answered when the transfer has begun. Raises: AskError."""
    await gateway.ask(leader_address, RequestCode.LEDGERMQ_TRANSFER_LEADER, {"transferee": node_id})
