"""What a node knows of the group's log: confirmed by a round at the leader, by asking it at a follower."""

import asyncio
from pathlib import Path
from typing import cast

import pytest

from broker.leadership import Forwarder
from broker.read_index import FRESH_MS, ReadIndex
from dledger.core.types import ResponseCode as EngineCode
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import RequestError
from tests.support.broker_parts import BrokerParts, FakeEngine, make_parts
from tests.support.fake_log import FakeLog
from tests.support.polling import loop_turns, until


class FakeForwarder:
    """A leader that answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[RemotingCommand] = []
        self._answers: list[asyncio.Future[RemotingCommand | None]] = []

    def may_forward(self, request: RemotingCommand) -> bool:
        return True

    async def ask_leader(self, request: RemotingCommand, timeout_s: float) -> RemotingCommand | None:
        self.asked.append(request)
        answer: asyncio.Future[RemotingCommand | None] = asyncio.get_running_loop().create_future()
        self._answers.append(answer)
        return await answer

    def answer(self, index: str | None, code: int = ResponseCode.SUCCESS) -> None:
        fields = {} if index is None else {"index": index}
        self._answers.pop(0).set_result(RemotingCommand(code, ext_fields=fields))

    def be_silent(self) -> None:
        self._answers.pop(0).set_result(None)


class Case:
    def __init__(self, tmp_path: Path) -> None:
        self.now_ms = 10_000
        self.log, self.engine = FakeLog(), FakeEngine()
        self.parts: BrokerParts = make_parts(tmp_path, self.log, self.engine)
        self.parts.monotonic_ms = lambda: self.now_ms
        self.wall_step_ms = 0
        self.parts.clock = lambda: self.now_ms + self.wall_step_ms
        self.forwarder = FakeForwarder()
        core = self.parts.core
        self.read_index = ReadIndex(
            self.log,
            self.engine,
            core.readiness,
            cast("Forwarder", self.forwarder),
            core.now_ms,
            core.clock,
            core.tasks.spawn,
        )

    def follow(self) -> None:
        self.engine.leader_id = "n1"
        self.log.set_writable(False)

    def ask(self, wanted_ms: int | None = None) -> "asyncio.Task[int | None]":
        return asyncio.create_task(self.read_index.age_ms(wanted_ms))


@pytest.fixture
async def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


async def test_a_leader_answers_after_a_round_and_when_it_has_applied_the_index(case: Case) -> None:
    case.engine.are_reads_held = True
    case.log._applied_index = 4
    confirming = asyncio.create_task(case.read_index.confirm())
    await loop_turns()
    assert not confirming.done()
    case.engine.end_reads(5)
    await loop_turns()
    assert not confirming.done()
    case.log._applied_index = 5
    await until(confirming.done)
    confirming.result()


@pytest.mark.parametrize("code", [EngineCode.WAIT_QUORUM_ACK_TIMEOUT, EngineCode.TERM_CHANGED])
async def test_a_leader_that_no_majority_confirms_refuses(case: Case, code: EngineCode) -> None:
    case.engine.read_code = code
    with pytest.raises(RequestError, match="no majority confirms") as caught:
        await case.read_index.confirm()
    assert caught.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert case.read_index.known_age_ms is None


async def test_a_follower_names_the_leader(case: Case) -> None:
    case.follow()
    with pytest.raises(RequestError, match="the leader is n1"):
        await case.read_index.confirm()


async def test_an_index_that_is_never_applied_is_not_waited_for_for_ever(case: Case) -> None:
    case.engine.are_reads_held = True
    confirming = asyncio.create_task(case.read_index.confirm())
    await loop_turns()
    case.engine.end_reads(99)
    await loop_turns()
    case.now_ms += 2_000
    await until(confirming.done)
    with pytest.raises(RequestError, match="does not show yet"):
        confirming.result()
    assert case.read_index.known_age_ms is None


async def test_reads_of_many_requests_share_the_wait(case: Case) -> None:
    case.engine.are_reads_held = True
    waiting = [asyncio.create_task(case.read_index.confirm()) for _ in range(50)]
    await loop_turns()
    case.engine.end_reads(3)
    await loop_turns()
    assert len(case.read_index._applying) == 1
    case.log._applied_index = 3
    await asyncio.gather(*waiting)
    await loop_turns()
    assert case.read_index._applying == {}


async def test_the_age_counts_from_the_question_not_from_its_answer(case: Case) -> None:
    case.follow()
    asking = case.ask()
    await loop_turns()
    assert case.forwarder.asked[0].code == RequestCode.LEDGERMQ_READ_INDEX
    case.now_ms += 400
    case.forwarder.answer("0")
    case.log._applied_index = 0
    await until(asking.done)
    assert asking.result() == 400
    case.now_ms += 100
    assert case.read_index.known_age_ms == 500


async def test_a_follower_that_has_not_applied_the_index_does_not_know_its_age(case: Case) -> None:
    case.follow()
    asking = case.ask()
    await loop_turns()
    case.forwarder.answer("7")
    await loop_turns()
    assert not asking.done()
    case.now_ms += 2_000
    await until(asking.done)
    assert asking.result() is None


@pytest.mark.parametrize("index", [None, "", "x", "²", "9" * 5_000])
async def test_an_answer_without_an_index_says_nothing(case: Case, index: str | None) -> None:
    case.follow()
    asking = case.ask()
    await loop_turns()
    case.forwarder.answer(index)
    assert await asking is None


async def test_a_refusal_or_no_answer_says_nothing(case: Case) -> None:
    case.follow()
    asking = case.ask()
    await loop_turns()
    case.forwarder.answer("0", 14)
    assert await asking is None
    asking = case.ask()
    await loop_turns()
    case.forwarder.be_silent()
    assert await asking is None


async def test_a_known_age_that_is_good_enough_is_not_asked_for_again(case: Case) -> None:
    case.follow()
    case.log._applied_index = 0
    asking = case.ask()
    await loop_turns()
    case.forwarder.answer("0")
    assert await asking == 0
    case.now_ms += FRESH_MS
    assert await case.ask() == FRESH_MS
    assert await case.ask(FRESH_MS) == FRESH_MS
    assert len(case.forwarder.asked) == 1
    asking = case.ask(FRESH_MS - 1)
    await loop_turns()
    assert len(case.forwarder.asked) == 2
    case.forwarder.answer("0")
    assert await asking == 0


async def test_requests_share_a_question_and_the_age_is_right_for_the_later_ones(case: Case) -> None:
    case.follow()
    case.log._applied_index = 0
    first = case.ask()
    await loop_turns()
    case.now_ms += 300
    second = case.ask(100)
    await loop_turns()
    case.forwarder.answer("0")
    assert (await first, await second) == (300, 300)
    assert len(case.forwarder.asked) == 1


async def test_a_leader_asks_its_group(case: Case) -> None:
    assert await case.ask() == 0
    assert case.forwarder.asked == []
    case.now_ms += 5_000
    case.engine.read_code = EngineCode.TERM_CHANGED
    assert await case.ask() == 5_000


async def test_the_age_is_the_longer_of_what_both_clocks_say(case: Case) -> None:
    """A suspended machine's monotonic clock may stand still; Unix time may be set back."""
    await case.read_index.confirm()
    case.wall_step_ms = 7_000
    case.now_ms += 100
    assert case.read_index.known_age_ms == 7_100
    case.wall_step_ms = -9_000
    assert case.read_index.known_age_ms == 100
