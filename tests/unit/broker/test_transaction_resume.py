"""An operator has a half message checked again that was put aside."""

from pathlib import Path

import pytest

from broker.leadership import Readiness
from broker.state.changes import PutSettings
from broker.state.topics import CHECK_MAX_TIME_TOPIC
from broker.transactions.checks import ResumeProcessor
from commitlog.log import PutStatus
from commitlog.record import offset_msg_id
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import RequestError
from tests.support.transaction_bench import COMMIT, SECOND, TransactionBench, make_transaction_bench


@pytest.fixture
async def bench(tmp_path: Path) -> TransactionBench:
    """With the body `hello` put aside."""
    bench = await make_transaction_bench(tmp_path, transactionCheckMax=0)
    bench.connect()
    await bench.prepare()
    bench.at(6 * SECOND)
    await bench.run_round()
    return bench


def message_id(bench: TransactionBench, topic: str = CHECK_MAX_TIME_TOPIC, queue_id: int = 0) -> str:
    queue = bench.log.queues.get(topic, queue_id)
    assert queue is not None
    ((position, _, _),) = queue.units(0, 1)
    return offset_msg_id(bench.parts.store_host, position)


async def resume(bench: TransactionBench, text: str) -> RemotingCommand:
    core = bench.parts.core
    readiness = Readiness(bench.log, None, "n0")
    processor = ResumeProcessor(core.log, core.router, core.store_host, readiness)
    request = RemotingCommand(RequestCode.RESUME_CHECK_HALF_MESSAGE, 1, ext_fields={"msgId": text})
    assert processor.handle(request, bench.producer) is None
    await bench.settle()
    (answer,) = bench.producer.take_answers()
    return answer


async def test_it_is_a_half_message_again_and_can_be_committed(bench: TransactionBench) -> None:
    assert (await resume(bench, message_id(bench))).code == 0
    await bench.parts.state.propose(PutSettings({"transactionCheckMax": "15"}))
    bench.at(12 * SECOND)
    await bench.checks.run_round()
    (asked,) = bench.producer.take_answers()
    ext = {"producerGroup": "p", "commitOrRollback": str(COMMIT)}
    ext |= {name: asked.ext_fields[name] for name in ("tranStateTableOffset", "commitLogOffset")}
    bench.send_end(RemotingCommand(RequestCode.END_TRANSACTION, 2, ext_fields=ext))
    await bench.settle()
    assert (bench.delivered, bench.open_count) == ([b"hello"], 0)


@pytest.mark.parametrize("text", ["", "x", "00" * 16, "zz" * 16, "00" * 28])
async def test_an_id_of_nothing_is_refused(bench: TransactionBench, text: str) -> None:
    with pytest.raises(RequestError) as caught:
        await resume(bench, text)
    assert caught.value.code == ResponseCode.SYSTEM_ERROR
    assert len(bench.halves) == 1


async def test_only_what_was_put_aside_can_be_resumed(bench: TransactionBench) -> None:
    with pytest.raises(RequestError):
        await resume(bench, message_id(bench, "RMQ_SYS_TRANS_HALF_TOPIC"))
    assert len(bench.halves) == 1


async def test_a_log_that_takes_nothing_is_told(bench: TransactionBench) -> None:
    bench.log.next_status = PutStatus.OS_PAGE_CACHE_BUSY
    with pytest.raises(RequestError) as caught:
        await resume(bench, message_id(bench))
    assert caught.value.code == ResponseCode.SYSTEM_BUSY
