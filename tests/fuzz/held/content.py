"""A broker and a name server with what a busy cluster has: topics, groups, offsets, clients, messages with
properties and keys, timers, messages popped and prepared; and one topic with as many queues as are possible.
"""

import base64
import gc
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import orjson

from broker.__main__ import MIDDLE_MAX, OLD_MAX, YOUNG_MAX
from broker.app import Broker
from broker.config import config_from
from broker.state.topics import QUEUE_NUMS_ASKED_MAX
from namesrv.config import NameServerConfig
from namesrv.server import NameServer
from remoting.codes import RequestCode as Code
from remoting.command import RemotingCommand
from remoting.tls import ServerTlsSettings
from tests.fuzz.held.measured import Peer, ServerThread
from tests.fuzz.held.samples import (
    GROUP,
    KEY,
    TOPIC,
    WIDE,
    compressed_registration,
    consumer,
    heartbeat,
    pop_ext,
    send_ext,
    sub_message,
)

WIDE_QUEUES: Final = QUEUE_NUMS_ASKED_MAX
TOPICS: Final = 4_500
GROUPS: Final = 4_500
CLIENTS: Final = 1_000
MESSAGES: Final = 40_000
_PER_BATCH: Final = 1_000


def broker_thread(folder: Path) -> ServerThread:
    """A group of one node. Nothing is in it yet."""

    async def start() -> tuple[int, Callable[[], Awaitable[None]]]:
        listen, replication = _free_ports(2)
        values = {"storePathRootDir": str(folder), "listenPort": listen, "namesrvAddr": ""}
        values |= {"dLegerPeers": f"n0-127.0.0.1:{replication}", "mappedFileSizeCommitLog": 64 << 20}
        values |= {"enablePropertyFilter": True}
        key = folder / "auth.key"
        key.write_bytes(base64.b64encode(bytes(32)))
        key.chmod(0o600)
        broker = Broker(config_from(values | {"recallMessageEnable": True, "authKeyPath": str(key)}))
        await broker.start()
        thread.codes, thread.replication_port = broker.core.router.codes, replication
        return listen, broker.stop

    thread = ServerThread(start)
    return thread


def name_server_thread(tls: ServerTlsSettings = ServerTlsSettings()) -> ServerThread:  # noqa: B008  it is frozen
    async def start() -> tuple[int, Callable[[], Awaitable[None]]]:
        server = NameServer(NameServerConfig(port=0, tls=tls))
        await server.start()
        thread.codes = server.codes
        return server.port, server.stop

    thread = ServerThread(start)
    return thread


@contextmanager
def as_in_production() -> Iterator[None]:
    """The garbage collector is set as a node that has started sets it, and little is logged."""
    thresholds = gc.get_threshold()
    were_frozen = gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_MAX, MIDDLE_MAX, OLD_MAX)
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        gc.set_threshold(*thresholds)
        if not were_frozen:  # else it stays so: those of a test run are frozen for good (tests/conftest.py)
            gc.unfreeze()


def fill_broker(port: int) -> Peer:
    """Returns the connection of its clients, which has to stay open."""
    peer = Peer(port)
    while _ask(peer, Code.SEND_MESSAGE_V2, send_ext("First"), b"first") != 0:
        time.sleep(0.05)
    _make(peer, WIDE, WIDE_QUEUES)
    _make(peer, TOPIC, 4)
    for first in range(0, TOPICS, _ROWS):
        rows = [
            {"topicName": f"T{at}", "readQueueNums": 4, "writeQueueNums": 4}
            for at in range(first, first + _ROWS)
        ]
        assert _ask(peer, Code.UPDATE_AND_CREATE_TOPIC_LIST, {}, orjson.dumps({"topicConfigList": rows})) == 0
        groups = [{"groupName": f"G{at}"} for at in range(first, first + _ROWS)]
        body = orjson.dumps({"groupConfigList": groups})
        assert _ask(peer, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}, body) == 0
    body = orjson.dumps({"groupConfigList": [{"groupName": GROUP}, {"groupName": "Poppers"}]})
    assert _ask(peer, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}, body) == 0
    _fill_messages(peer)
    for topic in (WIDE, TOPIC):
        ext = {"group": GROUP, "topic": topic, "timestamp": "-1", "isForce": "true"}
        assert _ask(peer, Code.INVOKE_BROKER_TO_RESET_OFFSET, ext) == 0
    for at in range(CLIENTS):
        body = heartbeat([consumer(GROUP, "*"), consumer(f"G{at}", "TagA")], f"10.0.0.{at % 250}@{at}")
        assert _ask(peer, Code.HEART_BEAT, {}, body) == 0
    assert _ask(peer, Code.POP_MESSAGE, pop_ext()) == 0
    user = orjson.dumps({"password": "secret", "userType": "Normal"})
    assert _ask(peer, Code.AUTH_CREATE_USER, {"username": "reader"}, user) == 0
    return peer


_ROWS: Final = 750


def _fill_messages(peer: Peer) -> None:
    for first in range(0, MESSAGES, _PER_BATCH):
        parts = [
            sub_message(f"UNIQ_KEY\x01u{at}\x02KEYS\x01{KEY}\x02TAGS\x01tag\x02a\x01{at % 10}\x02", b"b" * 50)
            for at in range(first, first + _PER_BATCH)
        ]
        ext = send_ext(m="true", e=str(first // _PER_BATCH % 2))
        assert _ask(peer, Code.SEND_BATCH_MESSAGE, ext, b"".join(parts)) == 0
    for at in range(100):
        properties = f"UNIQ_KEY\x01t{at}\x02TIMER_DELAY_SEC\x01{1_000 + at}\x02"
        assert _ask(peer, Code.SEND_MESSAGE_V2, send_ext(properties=properties), b"timer") == 0
        properties = f"UNIQ_KEY\x01h{at}\x02TRAN_MSG\x01true\x02PGROUP\x01P\x02"
        assert _ask(peer, Code.SEND_MESSAGE_V2, send_ext(properties=properties, f="4"), b"half") == 0


def fill_name_server(port: int) -> Peer:
    """Returns the connection of its brokers, which has to stay open."""
    peer = Peer(port)
    for at in range(100):
        ext = {
            "brokerName": f"known{at or ''}",
            "brokerAddr": f"10.0.1.{at}:10911",
            "clusterName": "DefaultCluster",
        }
        ext |= {"brokerId": "0", "compressed": "true"}
        body = compressed_registration(40_000 if at == 0 else 1_000)
        assert _ask(peer, Code.REGISTER_BROKER, ext, body) == 0
    for at in range(5_000):
        assert _ask(peer, Code.PUT_KV_CONFIG, {"namespace": "N", "key": f"k{at}", "value": "v" * 100}) == 0
    return peer


def _make(peer: Peer, topic: str, queues: int) -> None:
    ext = {"topic": topic, "defaultTopic": "TBW102", "perm": "6", "topicFilterType": "SINGLE_TAG"}
    ext |= {"readQueueNums": str(queues), "writeQueueNums": str(queues)}
    assert _ask(peer, Code.UPDATE_AND_CREATE_TOPIC, ext) == 0


def _ask(peer: Peer, code: Code, ext: dict[str, str], body: bytes = b"") -> int | str:
    """The code of the answer, with its remark if it is a refusal."""
    answer = peer.ask(RemotingCommand(code, ext_fields=ext, body=body), limit_s=20)
    if answer is None:
        return "no answer"
    return f"{answer.code} {answer.remark}" if answer.code else 0


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
