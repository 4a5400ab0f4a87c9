"""Whether brokers have a group pull or pop a topic: 401, 402 (RocketMQ 5; its clients ask for it by 400)."""

from typing import Any, Final

import orjson

from admin_api.gateway import AskError, Gateway
from admin_api.sources.bodies import Body, check, read_json
from remoting.codes import RequestCode, ResponseCode

CHANGE_TIMEOUT_MS: Final = 5_000
_WHAT_MODES: Final = "consume modes"


class ModeRow(Body):
    """SetMessageRequestModeRequestBody: `mode` is PULL or POP; `pop_share_queue_num` is how many consumers
    share the queues of one, 0 and below: all do.
    """

    topic: str
    consumer_group: str
    mode: str
    pop_share_queue_num: int = 0


class ConsumeModeSource:
    """Asks one broker. Everything raises AskError."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def of_group(self, address: str, group: str) -> dict[str, ModeRow] | None:
        """402: topic -> what was set; None of a broker that knows no modes (RocketMQ 4)."""
        accept = (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        answer = await self._gateway.ask(address, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, accept=accept)
        if answer.code != ResponseCode.SUCCESS:
            return None
        topics = read_json(address, answer.body, _WHAT_MODES).get("messageRequestModeMap")
        if not isinstance(topics, dict):
            raise AskError(address, f"{address}: its {_WHAT_MODES} cannot be read")
        found = {topic: _row(groups, group) for topic, groups in topics.items()}
        return {
            topic: check(address, row, ModeRow, _WHAT_MODES)
            for topic, row in found.items()
            if row is not None
        }

    async def put(self, address: str, mode: ModeRow) -> None:
        """401"""
        body = orjson.dumps(mode.model_dump(by_alias=True))
        code = RequestCode.SET_MESSAGE_REQUEST_MODE
        await self._gateway.ask(address, code, body=body, timeout_ms=CHANGE_TIMEOUT_MS)


def _row(groups: Any, group: str) -> Any:
    return groups.get(group) if isinstance(groups, dict) else None
