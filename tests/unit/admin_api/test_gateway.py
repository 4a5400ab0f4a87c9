"""Bounds of the asks, and a broker that hangs."""

import asyncio
from typing import Any

import pytest

from admin_api.gateway import AskError, Gateway, Trouble
from admin_api.settings import Settings
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from tests.unit.admin_api.fake_brokers import NAMESRV, FakeBroker, FakeBrokers

A, B = "127.0.0.1:10911", "127.0.0.1:20911"
CODE = RequestCode.GET_ALL_TOPIC_CONFIG


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def two_brokers() -> FakeBrokers:
    return FakeBrokers(FakeBroker("broker-a", A), FakeBroker("broker-b", B))


def gateway_of(brokers: FakeBrokers, clock: Clock | None = None, **limits: Any) -> Gateway:
    return Gateway(brokers, Settings(namesrv=NAMESRV, **limits), clock or Clock())


async def settle() -> None:
    """Lets every task come to where it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_ask_hanging_broker_is_left_alone_after_its_first_silence() -> None:
    brokers = two_brokers()
    brokers.hanging = {A}
    gateway = gateway_of(brokers)
    with pytest.raises(AskError, match=r"no answer within 1\.0 s"):
        await gateway.ask(A, CODE)
    for _ in range(5):
        with pytest.raises(AskError, match="is not asked for a moment"):
            await gateway.ask(A, CODE)
    assert brokers.asked[A, CODE] == 1
    await gateway.ask(B, CODE)


async def test_ask_after_the_pause_looks_in_the_background_and_waits_for_nothing() -> None:
    brokers, clock = two_brokers(), Clock()
    brokers.hanging = {A}
    gateway = gateway_of(brokers, clock)
    with pytest.raises(AskError):
        await gateway.ask(A, CODE)
    clock.now_s += 1.0
    brokers.hanging = set()
    with pytest.raises(AskError, match="not asked"):
        await gateway.ask(A, CODE)
    await settle()
    assert brokers.asked[A, RequestCode.LEDGERMQ_NODE_STATUS] == 1
    assert (await gateway.ask(A, CODE)).code == 0


async def test_ask_look_that_meets_silence_doubles_the_pause() -> None:
    brokers, clock = two_brokers(), Clock()
    brokers.hanging = {A}
    gateway = gateway_of(brokers, clock)
    for pause_s in (0.0, 1.0, 1.0, 1.0):
        clock.now_s += pause_s
        with pytest.raises(AskError):
            await gateway.ask(A, CODE)
        await settle()
    assert brokers.asked[A, RequestCode.LEDGERMQ_NODE_STATUS] == 2
    assert brokers.asked[A, CODE] == 1


async def test_ask_refused_connection_pauses_nothing() -> None:
    brokers = two_brokers()
    brokers.dead = {A}
    gateway = gateway_of(brokers)
    for _ in range(2):
        with pytest.raises(AskError, match="cannot be reached"):
            await gateway.ask(A, CODE)
    assert brokers.asked[A, CODE] == 2


async def test_ask_silence_of_a_client_behind_the_broker_is_not_the_brokers() -> None:
    brokers = two_brokers()
    brokers.hanging = {A}
    gateway = gateway_of(brokers)
    with pytest.raises(AskError):
        await gateway.ask(A, RequestCode.GET_CONSUMER_RUNNING_INFO)
    brokers.hanging = set()
    assert (await gateway.ask(A, CODE)).code == 0


async def test_ask_code_not_wanted_is_an_error_that_has_it() -> None:
    brokers = two_brokers()
    brokers.refusing[A, CODE] = (17, "no such topic")
    gateway = gateway_of(brokers)
    with pytest.raises(AskError, match=f"{A} answered code 17: no such topic") as caught:
        await gateway.ask(A, CODE)
    assert (caught.value.address, caught.value.code) == (A, 17)
    assert (await gateway.ask(A, CODE, accept=(0, 17))).code == 17


async def test_ask_code_that_a_broker_does_not_know_is_not_sent_again_for_a_while() -> None:
    brokers, clock = two_brokers(), Clock()
    brokers.refusing[A, CODE] = (3, "request type not supported")
    gateway = gateway_of(brokers, clock)
    for _ in range(3):
        with pytest.raises(AskError, match=f"{A} answered code 3: ") as caught:
            await gateway.ask(A, CODE)
        assert caught.value.code == 3
        assert (await gateway.ask(A, CODE, accept=(0, 3))).code == 3
    assert brokers.asked[A, CODE] == 1
    assert (await gateway.ask(B, CODE)).code == 0
    del brokers.refusing[A, CODE]
    clock.now_s += 61.0
    assert (await gateway.ask(A, CODE)).code == 0


async def test_ask_broker_that_was_away_may_know_the_code_when_it_is_back() -> None:
    brokers = two_brokers()
    brokers.refusing[A, CODE] = (3, "request type not supported")
    gateway = gateway_of(brokers)
    other = RequestCode.GET_BROKER_RUNTIME_INFO
    for code in (CODE, other):
        brokers.dead = {A} if code is other else set()
        with pytest.raises(AskError):
            await gateway.ask(A, code)
    brokers.dead, brokers.refusing = set(), {}
    assert (await gateway.ask(A, CODE)).code == 0


async def test_ask_another_release_at_the_address_may_know_the_code() -> None:
    class Replaced(FakeBrokers):
        version = 407

        async def invoke(
            self, address: str, command: RemotingCommand, timeout_s: float = 3.0
        ) -> RemotingCommand:
            answer = await super().invoke(address, command, timeout_s)
            answer.version = self.version
            return answer

    brokers = Replaced(FakeBroker("broker-a", A))
    brokers.refusing[A, CODE] = (3, "request type not supported")
    gateway = gateway_of(brokers)
    with pytest.raises(AskError):
        await gateway.ask(A, CODE)
    brokers.refusing, brokers.version = {}, 413
    await gateway.ask(A, RequestCode.GET_BROKER_RUNTIME_INFO)
    assert gateway.version_of(A) == 413
    assert (await gateway.ask(A, CODE)).code == 0


async def test_ask_each_keeps_its_bounds_of_broker_and_process() -> None:
    brokers = two_brokers()
    brokers.holds = True
    gateway = gateway_of(brokers, asks_in_flight_max=6, asks_per_broker_max=4)
    asking = [asyncio.create_task(gateway.ask(address, CODE)) for address in [A] * 10 + [B] * 10]
    await settle()
    assert brokers.asked[A, CODE] == 4
    assert brokers.asked[B, CODE] == 2
    brokers.release.set()
    await asyncio.gather(*asking)
    assert brokers.in_flight_max == 6


async def test_ask_those_that_wait_behind_a_silent_one_fail_with_it() -> None:
    brokers = two_brokers()
    brokers.hanging, brokers.holds = {A}, True
    gateway = gateway_of(brokers)
    asking = [asyncio.create_task(gateway.ask(A, CODE)) for _ in range(10)]
    await settle()
    brokers.release.set()
    outcomes = await asyncio.gather(*asking, return_exceptions=True)
    assert all(isinstance(outcome, AskError) for outcome in outcomes)
    assert brokers.asked[A, CODE] == 4


async def test_ask_each_gives_answers_and_troubles() -> None:
    brokers = two_brokers()
    brokers.dead = {B}
    gateway = gateway_of(brokers)

    async def code_of(address: str) -> int:
        return (await gateway.ask(address, CODE)).code

    gathered = await gateway.ask_each([A, B, A], code_of)
    assert gathered.answers == {A: 0}
    assert gathered.troubles == (Trouble(B, f"{B} cannot be reached"),)


async def test_close_ends_the_look_at_a_silent_broker() -> None:
    brokers, clock = two_brokers(), Clock()
    brokers.hanging = {A}
    gateway = gateway_of(brokers, clock)
    with pytest.raises(AskError):
        await gateway.ask(A, CODE)
    brokers.holds = True
    clock.now_s += 1.0
    with pytest.raises(AskError):
        await gateway.ask(A, CODE)
    await settle()
    assert brokers.in_flight == 1
    await gateway.close()
    assert brokers.in_flight == 0


async def test_ask_addresses_remembered_are_bounded() -> None:
    brokers = two_brokers()
    gateway = gateway_of(brokers, nodes_max=2)
    for port in range(1, 6):
        with pytest.raises(AskError):
            await gateway.ask(f"127.0.0.1:{port}", CODE)
    assert len(gateway._lines) <= 2
