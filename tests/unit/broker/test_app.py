"""A whole broker in this process: real log, real state, real sockets on loopback."""

import asyncio
import os
import socket
from pathlib import Path
from typing import Self

import orjson
import pytest

from broker.__main__ import EXIT_CONFIG, EXIT_FAILED, main, serve_until
from broker.admin.types import NodeStatusMessage
from broker.app import Broker
from broker.config import BrokerConfig, config_from
from broker.consume.held_pulls import PullWaits
from broker.store.message_log import StoreLock, StoreLockedError
from dledger.codec import PROTOCOL_VERSION, Hello
from remoting.client.aio import RemotingClient
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from telemetry.release import own_release
from tests.support.polling import until
from tests.support.scripted_peer import dialled
from tests.unit.broker.consume_bench import pull_request

LIMIT_S = 20.0


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def make_config(tmp_path: Path, **values: object) -> BrokerConfig:
    listen, replication = free_ports(2)
    return config_from(
        {
            "storePathRootDir": str(tmp_path / "store"),
            "listenPort": listen,
            "namesrvAddr": "",
            "dLegerPeers": f"n0-127.0.0.1:{replication}",
            "heartbeatIntervalMs": 10,
            "electionTimeoutMinMs": 50,
            "electionTimeoutMaxMs": 60,
            "mappedFileSizeCommitLog": 8 * 1024 * 1024,
            **values,
        }
    )


class Life:
    """A broker from its start to its stop, with a client to ask it."""

    def __init__(self, config: BrokerConfig) -> None:
        self.broker = Broker(config)
        self.address = config.broker_address
        self.client = RemotingClient()

    async def __aenter__(self) -> Self:
        writable = asyncio.Event()
        log = self.broker.core.log
        log.on_writable_change(lambda is_writable: writable.set())
        await self.broker.start()
        if not log.is_writable():
            await asyncio.wait_for(writable.wait(), LIMIT_S)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.client.close()
        await self.broker.stop()

    async def ask(self, code: RequestCode, body: bytes = b"", /, **ext: str) -> RemotingCommand:
        return await self.client.invoke(
            self.address, RemotingCommand(code, ext_fields=ext, body=body), LIMIT_S
        )

    async def send(self, topic: str, body: bytes) -> RemotingCommand:
        return await self.ask(
            RequestCode.SEND_MESSAGE_V2,
            body,
            a="p",
            b=topic,
            c="TBW102",
            d="4",
            e="0",
            f="0",
            g="1",
            h="0",
            i="",
        )


@pytest.mark.parametrize("is_group", [True, False])
async def test_messages_topics_and_offsets_outlive_a_restart(tmp_path: Path, is_group: bool) -> None:
    config = make_config(tmp_path, enableDLegerCommitLog=is_group)
    async with Life(config) as first:
        answers = await asyncio.gather(*(first.send("t", b"%d" % n) for n in range(50)))
        assert {answer.code for answer in answers} == {0}
        assert sorted(int(answer.ext_fields["queueOffset"]) for answer in answers) == list(range(50))
        group = await first.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'{"groupName":"g"}')
        assert group.code == 0
        fields = {"consumerGroup": "g", "topic": "t", "queueId": "0"}
        assert (await first.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **fields, commitOffset="17")).code == 0
    async with Life(config) as second:
        topics = orjson.loads((await second.ask(RequestCode.GET_ALL_TOPIC_CONFIG)).body)["topicConfigTable"]
        assert topics["t"]["writeQueueNums"] == 4
        offset = await second.ask(RequestCode.QUERY_CONSUMER_OFFSET, **fields)
        assert (offset.code, offset.ext_fields["offset"]) == (0, "17")
        answer = await second.send("t", b"50")
        assert answer.ext_fields["queueOffset"] == "50"
        position = str(int(answer.ext_fields["msgId"][16:], 16))
        viewed = await second.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=position)
        assert b"50" in viewed.body


async def test_the_state_is_rebuilt_from_the_log_without_its_snapshot(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    async with Life(config) as first:
        assert (await first.send("t", b"x")).code == 0
    snapshot = config.store_path_root_dir / "state" / "snapshot"
    assert snapshot.exists()
    snapshot.unlink()
    async with Life(config) as second:
        assert (await second.ask(RequestCode.GET_TOPIC_CONFIG, topic="t")).code == 0


async def test_a_wiped_log_is_not_mixed_with_an_old_snapshot(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    async with Life(config) as first:
        for n in range(5):
            assert (await first.send(f"t{n}", b"x")).code == 0
    for file in (config.store_path_root_dir / "dledger-n0").rglob("*"):
        if file.is_file():
            file.unlink()
    async with Life(config) as second:
        assert (await second.ask(RequestCode.GET_TOPIC_CONFIG, topic="t0")).code == 17
        assert (await second.send("t0", b"x")).code == 0
        assert (await second.ask(RequestCode.GET_TOPIC_CONFIG, topic="t0")).code == 0


async def test_the_status_shows_a_leader_that_has_applied_everything(tmp_path: Path) -> None:
    async with Life(make_config(tmp_path)) as node:
        await node.send("t", b"x")
        status = NodeStatusMessage.from_json((await node.ask(RequestCode.LEDGERMQ_NODE_STATUS)).body)
    assert (status.role, status.leader_id, status.is_writable) == ("LEADER", "n0", True)
    assert status.applied_index == status.committed_index == status.end_index == status.persisted_index
    assert status.end_position == status.committed_position
    assert [epoch.term for epoch in status.epochs] == [status.term]


async def test_a_store_has_one_process(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    async with Life(config):
        with pytest.raises(StoreLockedError):
            Broker(config)


async def test_a_taken_port_is_an_error_and_the_store_is_free_again(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    taken = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", config.listen_port)
    broker = Broker(config)
    with pytest.raises(OSError, match=f"port {config.listen_port} is in use by process {os.getpid()} "):
        await broker.start()
    await broker.stop()
    taken.close()
    await taken.wait_closed()
    async with Life(config) as node:
        assert (await node.send("t", b"x")).code == 0


def test_exit_codes_tell_what_is_wrong(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert main(["--set", "brokername=x"]) == EXIT_CONFIG
    assert "brokerName" in caplog.text
    root = tmp_path / "store"
    lock = StoreLock(root)
    assert main(["--set", f"storePathRootDir={root}"]) == EXIT_FAILED
    assert "another process uses the store" in caplog.text
    lock.release()


async def test_a_node_that_cannot_go_on_ends_with_an_error(tmp_path: Path) -> None:
    broker = Broker(make_config(tmp_path))
    ended = asyncio.create_task(serve_until(broker, asyncio.Event()))
    broker.failure.set_result(OSError("the disk is gone"))
    assert await asyncio.wait_for(ended, LIMIT_S) == EXIT_FAILED
    await broker.stop()


async def test_a_node_that_is_told_to_stop_ends_well(tmp_path: Path) -> None:
    broker, stop = Broker(make_config(tmp_path)), asyncio.Event()
    stop.set()
    assert await asyncio.wait_for(serve_until(broker, stop), LIMIT_S) == 0
    await broker.stop()


async def test_a_held_pull_is_answered_before_a_stop_closes_its_connection(tmp_path: Path) -> None:
    life = await Life(make_config(tmp_path)).__aenter__()
    assert (await life.send("t", b"x")).code == 0
    held = asyncio.create_task(life.client.invoke(life.address, pull_request(1, group="g"), LIMIT_S))
    (waits,) = [each for each in life.broker._features.services if isinstance(each, PullWaits)]
    async with asyncio.timeout(LIMIT_S):
        while not len(waits):
            await asyncio.sleep(0)
    await life.broker.stop()
    assert (await held).code == ResponseCode.PULL_NOT_FOUND
    await life.client.close()


async def test_a_node_names_its_release_to_other_members(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    async with Life(config), dialled(("127.0.0.1", config.own_peer.port)) as other:
        other.send(Hello(config.group, "n1", PROTOCOL_VERSION, ""))
        await until(lambda: other.frames)
        assert other.frames[0].release == own_release() != ""
