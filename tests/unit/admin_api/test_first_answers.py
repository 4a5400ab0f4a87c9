"""What the first who asks waits for: brokers that hang once, all together; and nothing is built for it."""

import asyncio
from typing import Any

import pytest
from httpx import AsyncClient, Response
from pydantic import TypeAdapter

from admin_api.sources import brokers as sources
from broker.admin.types import NodeRole
from remoting.command import RemotingCommand
from remoting.errors import RequestTimeoutError
from tests.unit.admin_api.fake_brokers import FakeBroker, FakeBrokers
from tests.unit.admin_api.node_samples import peer
from tests.unit.admin_api.serving import answered, asking

A0, A1, B0, B1, B2 = (f"127.0.0.1:{port}" for port in (10911, 10912, 20911, 20912, 20913))
FOLLOWS = {"role": NodeRole.FOLLOWER, "is_writable": False}


@pytest.fixture(autouse=True)
def cold() -> None:
    """In place of the folder's: here the routes are built at the start, as in the service."""


class Hanging(FakeBrokers):
    """Those in `hanging` say nothing until `give_up`, when what waits for them times out."""

    def __init__(self, *brokers: FakeBroker) -> None:
        super().__init__(*brokers)
        self.waiting: list[asyncio.Future[None]] = []

    async def invoke(self, address: str, command: RemotingCommand, timeout_s: float = 3.0) -> RemotingCommand:
        if address in self.hanging:
            self.waiting.append(asyncio.get_running_loop().create_future())
            await self.waiting[-1]
            raise RequestTimeoutError(f"{address}: no answer within {timeout_s} s")
        return await super().invoke(address, command, timeout_s)

    def give_up(self) -> None:
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)


def two_groups() -> Hanging:
    """Of `broker-b` the name server does not list the last node; the others know it."""
    of_b = (peer("n1", remoting_address=B1), peer("n2", remoting_address=B2))
    brokers = Hanging(
        FakeBroker("broker-a", A0),
        FakeBroker("broker-a", A1, 2, facts=FOLLOWS),
        FakeBroker("broker-b", B0, facts={"peers": of_b}),
        FakeBroker("broker-b", B1, 2, facts=FOLLOWS),
        FakeBroker("broker-b", B2, 3, facts=FOLLOWS),
    )
    del brokers.listed[B2]
    return brokers


async def silences(brokers: Hanging, client: AsyncClient, path: str) -> tuple[int, Response]:
    """How often, one after the other, brokers that hang had to be waited for; and the answer."""
    asked, count = asyncio.create_task(client.get(path)), 0
    while not asked.done():
        for _ in range(100):
            await asyncio.sleep(0)
        if brokers.waiting:
            count += 1
            brokers.give_up()
        else:
            await asyncio.sleep(0)
    return count, await asked


@pytest.mark.parametrize("path", ["/topics", "/cluster", "/brokers", "/producer-groups", "/topics/none"])
@pytest.mark.parametrize(
    "hanging", [{A0, A1}, {A0, B1}, {A0, B2}, {B0, B1, B2}], ids=["all of one", "two", "unlisted", "all"]
)
async def test_all_that_hang_are_waited_for_together(
    monkeypatch: pytest.MonkeyPatch, path: str, hanging: set[str]
) -> None:
    monkeypatch.setattr(sources, "OTHERS_AFTER_S", 0.0)
    brokers = two_groups()
    brokers.hanging = hanging
    async with asking(brokers, brokers_cache_ms=500) as client:
        count, answer = await silences(brokers, client, path)
    assert answer.status_code in (200, 404, 503), answer.text
    assert count == 1


async def test_others_are_not_asked_where_the_listed_master_answers() -> None:
    brokers = two_groups()
    async with asking(brokers) as client:
        answered(await client.get("/topics"))
    assert not {address for address, _ in brokers.asked} & {A1, B1, B2}


async def test_nothing_is_built_for_the_first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Any] = []
    plain = TypeAdapter.__init__

    def counting(self: TypeAdapter[Any], type_: Any, **options: Any) -> None:
        built.append(type_)
        plain(self, type_, **options)

    async with asking(two_groups()) as client:
        monkeypatch.setattr(TypeAdapter, "__init__", counting)
        answered(await client.get("/topics"))
    assert built == []
