"""admin_api.sources.offsets, .consume_modes: what a stock broker's long answers may hold, and what not."""

import pytest

from admin_api.gateway import AskError, Gateway
from admin_api.settings import Settings
from admin_api.sources.bodies import QueueKey
from admin_api.sources.groups import ConsumeModeSource
from admin_api.sources.offsets import OffsetSource
from remoting.command import RemotingCommand

ADDRESS = "127.0.0.1:10911"
KEY = '{"brokerName":"b","queueId":0,"topic":"t"}'
QUEUE = QueueKey(broker_name="b", queue_id=0, topic="t")
ROW = '{"brokerOffset":7,"consumerOffset":3,"lastTimestamp":0}'


class Saying:
    """In place of the client: a broker that answers everything with one body."""

    def __init__(self, body: str, version: int = 407) -> None:
        self.body = body
        self.version = version
        self.asked: list[int] = []

    async def invoke(self, address: str, command: RemotingCommand, timeout_s: float = 3.0) -> RemotingCommand:
        self.asked.append(command.code)
        return RemotingCommand(
            code=0, body=self.body.encode(), version=self.version, ext_fields={"offset": "0"}
        )


def gateway(body: str) -> Gateway:
    return Gateway(Saying(body), Settings("127.0.0.1:9876"))


def source(body: str) -> OffsetSource:
    return OffsetSource(gateway(body))


async def test_the_lags_of_all_groups() -> None:
    body = f'{{"consumeStatsList":[{{"g":[{{"offsetTable":{{{KEY}:{ROW}}}}}]}},{{"h":[]}}]}}'
    assert await source(body).lags(ADDRESS) == {"g": {"t": 4}, "h": {}}


@pytest.mark.parametrize(
    "body",
    [
        "{}",
        '{"consumeStatsList":null}',
        '{"consumeStatsList":{}}',
        '{"consumeStatsList":[3]}',
        '{"consumeStatsList":[{"g":3}]}',
        '{"consumeStatsList":[{"g":[3]}]}',
        '{"consumeStatsList":[{"g":[{}]}]}',
        '{"consumeStatsList":[{"g":[{"offsetTable":[]}]}]}',
    ],
)
async def test_lags_that_are_not_there_are_no_lag_of_none_and_no_fault(body: str) -> None:
    with pytest.raises(AskError, match=f"{ADDRESS}: its progress of all groups"):
        await source(body).lags(ADDRESS)


async def test_a_nought_that_is_not_stored_is_none() -> None:
    stored = source('{"offsetTable":{"t@g":{0:0}}}')
    assert await stored.without_missing(ADDRESS, "g", {QUEUE: 0}) == {QUEUE: 0}
    assert await stored.without_missing(ADDRESS, "other", {QUEUE: 0}) == {QUEUE: None}


@pytest.mark.parametrize(("version", "asks"), [(407, [14, 43]), (413, [14])], ids=["4.9.7", "5.0.0"])
async def test_what_is_stored_is_asked_only_of_brokers_that_mix_it_up(version: int, asks: list[int]) -> None:
    broker = Saying('{"offsetTable":{"t@g":{0:0}}}', version)
    offsets = OffsetSource(Gateway(broker, Settings("127.0.0.1:9876")))
    told = {QUEUE: await offsets.committed(ADDRESS, "g", "t", 0)}
    assert await offsets.without_missing(ADDRESS, "g", told) == {QUEUE: 0}
    assert broker.asked == asks


@pytest.mark.parametrize("body", ["{}", '{"offsetTable":null}', '{"offsetTable":{"t@g":3}}'])
async def test_without_what_is_stored_a_nought_is_not_known_to_be_none(body: str) -> None:
    with pytest.raises(AskError, match="its list of all offsets is no table of tables"):
        await source(body).without_missing(ADDRESS, "g", {QUEUE: 0})


@pytest.mark.parametrize("body", ["{}", '{"messageRequestModeMap":null}', '{"messageRequestModeMap":[]}'])
async def test_modes_that_are_not_there_are_not_known_to_be_none(body: str) -> None:
    with pytest.raises(AskError, match="its consume modes cannot be read"):
        await ConsumeModeSource(gateway(body)).of_group(ADDRESS, "g")
    assert await ConsumeModeSource(gateway('{"messageRequestModeMap":{}}')).of_group(ADDRESS, "g") == {}
