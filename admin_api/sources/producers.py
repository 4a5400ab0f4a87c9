"""Who sends to a broker: 328 all at once, 204 one group (for brokers that do not know 328)."""

from collections.abc import Mapping
from typing import Final

from admin_api.gateway import AskError, Gateway
from admin_api.sources.bodies import Body, check, read_json, table_of
from remoting.codes import RequestCode, ResponseCode

PRODUCERS_MAX: Final = 100_000
_WHAT_PRODUCERS: Final = "list of producers"


class ProducerRow(Body):
    """One client of a producer group as a broker knows it."""

    client_id: str
    remote_i_p: str | None = None
    client_addr: str | None = None
    language: str | None = None
    version: int = -1
    last_update_timestamp: int | None = None

    @property
    def address(self) -> str | None:
        """Stock brokers write Java's `/10.0.0.9:5000`."""
        told = self.remote_i_p or self.client_addr
        return told and told.removeprefix("/")


class ProducerSource:
    """Asks one broker. Everything raises AskError."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def all(self, address: str) -> Mapping[str, tuple[ProducerRow, ...]]:
        """328: the clients of every producer group."""
        answer = await self._gateway.ask(address, RequestCode.GET_ALL_PRODUCER_INFO)
        table = table_of(
            address, read_json(address, answer.body, _WHAT_PRODUCERS), "data", _WHAT_PRODUCERS, PRODUCERS_MAX
        )
        if not all(isinstance(rows, list) for rows in table.values()):
            raise AskError(address, f"{address}: its {_WHAT_PRODUCERS} is no table of lists")
        if sum(map(len, table.values())) > PRODUCERS_MAX:
            raise AskError(address, f"{address}: its {_WHAT_PRODUCERS} has more than {PRODUCERS_MAX} clients")
        return {
            group: tuple(check(address, row, ProducerRow, _WHAT_PRODUCERS) for row in rows)
            for group, rows in table.items()
        }

    async def of_group(self, address: str, group: str) -> tuple[ProducerRow, ...]:
        """204: the clients of one group; none when nobody of it is connected."""
        code = RequestCode.GET_PRODUCER_CONNECTION_LIST
        accept = (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)
        answer = await self._gateway.ask(address, code, {"producerGroup": group}, accept=accept)
        if answer.code == ResponseCode.SYSTEM_ERROR:
            return ()
        rows = read_json(address, answer.body, _WHAT_PRODUCERS).get("connectionSet") or []
        if not isinstance(rows, list) or len(rows) > PRODUCERS_MAX:
            raise AskError(
                address, f"{address}: its {_WHAT_PRODUCERS} is no list of at most {PRODUCERS_MAX} clients"
            )
        return tuple(check(address, row, ProducerRow, _WHAT_PRODUCERS) for row in rows)
