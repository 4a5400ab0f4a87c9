"""Whether a committed message stands behind the record that says so, wherever in the files of a real log."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.config import BrokerConfig, config_from
from broker.state.topics import HALF_TOPIC
from broker.transactions.ledger import Loaded, Loader
from broker.transactions.ops import Ended, OpWriter
from broker.transactions.window import Ending
from commitlog.commit_log import CommitLog, RecordStoreConfig
from commitlog.consume_queues import ConsumeQueueConfig
from commitlog.dledger_commit_log import DLedgerCommitLog, store_directory
from commitlog.entry import write_physical_offset
from commitlog.entry_files import EntryStoreConfig
from commitlog.entry_store import open_entry_store
from commitlog.indexed_log import MessageLogConfig
from commitlog.log import MessageLog
from commitlog.record import Message
from tests.support.fake_engine import FakeEngine, as_server
from tests.support.memory_fs import MemoryFs
from tests.unit.broker.consume_bench import ignore

STORE = Path("/store")
FILE_BYTES = 4_096
CONFIG = MessageLogConfig(ConsumeQueueConfig(file_bytes=200), message_bytes_max=2_000)


def fail(error: BaseException) -> None:
    raise error


def broker_config(enable_dledger: bool) -> BrokerConfig:
    config = config_from({"enableDLegerCommitLog": enable_dledger})
    return config.model_copy(update={"data_file_bytes": FILE_BYTES})


def group_log() -> tuple[MessageLog, Callable[[], None]]:
    fs = MemoryFs()
    fs.make_directory(STORE)
    files = EntryStoreConfig(data_file_bytes=FILE_BYTES, index_file_bytes=256, cache_bytes_max=1_000)
    store = open_entry_store(store_directory(STORE, "n0"), files, write_physical_offset, fs)
    engine = FakeEngine(store)
    log = DLedgerCommitLog(as_server(engine), store, STORE, CONFIG, on_fatal=fail, fs=fs)
    engine.lead(1)
    engine.commit()
    return log, engine.commit


async def plain_log() -> tuple[MessageLog, Callable[[], None]]:
    files = RecordStoreConfig(file_bytes=FILE_BYTES, reserve_bytes=256, unsynced_bytes_max=4_096)
    log = CommitLog(STORE, CONFIG, files, on_fatal=fail, fs=MemoryFs())
    await log.start()
    return log, lambda: None


class LoadingBench:
    """A log whose puts are committed at once, and the loader of its node."""

    def __init__(self, log: MessageLog, commit: Callable[[], None], config: BrokerConfig) -> None:
        self.log = log
        self.loader = Loader(log, config)
        self._commit = commit
        self._writer = OpWriter(bytes(8))

    async def put(self, *messages: Message) -> int:
        result = self.log.put(messages, ignore)
        self._commit()
        async with asyncio.timeout(10):
            while self.log.max_position <= result.positions[-1]:
                await asyncio.sleep(0)
        return result.positions[0]

    async def prepare(self) -> int:
        return await self.put(Message(HALF_TOPIC, 0, b"half"))

    async def end(self, offset: int, size: int | None, place: int) -> Loaded:
        """Say that it is committed, with a message of this size behind it, or none; `place` is the half
        message's that the message names.
        """
        messages = [self._writer.ended(offset, Ending.COMMIT, 1)]
        if size is not None:
            messages.append(Message("t", 0, bytes(size), prepared_transaction_offset=place))
        await self.put(*messages)
        return await self.loader.load()


@pytest.mark.parametrize("is_group", [True, False], ids=["group", "plain"])
async def test_the_message_behind_the_last_record_is_found_or_missed(is_group: bool) -> None:
    log, commit = group_log() if is_group else await plain_log()
    bench = LoadingBench(log, commit, broker_config(is_group))
    whole = files = 0
    for number in range(120):
        position = await bench.prepare()
        size = number * 97 % 1_900
        loaded = await bench.end(number, size, position)
        whole += loaded.unfinished is None
        assert loaded.window.open_count == 0, f"message {number} of {size} bytes"
        files = log.max_position // FILE_BYTES
    assert (whole, files > 20) == (120, True)
    for number in range(120, 160):
        position = await bench.prepare()
        loaded = await bench.end(number, None, position)
        assert loaded.unfinished == Ended(number, Ending.COMMIT)
        assert loaded.window.is_open(number)
        loaded = await bench.end(number, number, position + 1)
        assert loaded.unfinished == Ended(number, Ending.COMMIT), "the message of another half message"
        await bench.end(number, number * 11, position)
    await log.stop()
