"""Everything that has once cost a cluster its log, its leader or its memory, tried from outside against one
cluster as `ledgermq up` starts it, while a producer sends: refused, bounded, the log whole, the leader the
same.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

import orjson
import psutil
import pytest

from remoting.client.blocking import Connection
from remoting.client.tls import ClientTls
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.record import decode_records
from tests.integration.cluster import Cluster
from tests.integration.test_bad_input import frame, send_ext
from tests.integration.test_hostile_clients import Peak, flood, is_closed, pull_frame
from tests.integration.test_known_members import forged, own_certificate, send
from tests.integration.test_name_server_rights import forged as forged_registrations
from tests.integration.test_name_server_rights import registration
from tests.integration.waiting import wait_for
from tests.integration.wire import Wire, WireError, broker_of

pytestmark = pytest.mark.integration
MIB = 1 << 20
LIMIT_S = 20.0
TOPIC, GROUP = "Under", "Attackers"
INT64_MAX = 2**63 - 1
HALF_FRAMES = 100
HELD_MAX = 600 * MIB
LISTS = b"[" + b",".join([b"[]"] * 5_000_000) + b"]"


class Load:
    """A producer that sends while the block runs, one message after the other over one connection."""

    def __init__(self, broker: str) -> None:
        self._wire = Wire(broker, LIMIT_S)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self.acknowledged: list[bytes] = []
        self.failure: Exception | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._wire.__exit__(None, None, None)

    def _send(self) -> None:
        ext = send_ext(TOPIC)
        try:
            while not self._is_over.is_set():
                body = b"%d" % len(self.acknowledged)
                answer = self._wire.invoke(RequestCode.SEND_MESSAGE_V2, ext, body)
                assert answer.code == ResponseCode.SUCCESS, answer
                self.acknowledged.append(body)
        except (OSError, WireError, AssertionError) as error:
            self.failure = error

    def assert_goes_on(self) -> None:
        """A message that is sent from now on is acknowledged."""
        count = len(self.acknowledged) + 1
        wait_for("another message is acknowledged", lambda: len(self.acknowledged) > count, LIMIT_S)


class Attacked:
    """The cluster, and what it was before."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.leader = cluster.wait_leader()
        self.broker = cluster.address(self.leader)
        self.before = cluster.statuses()
        self.processes = cluster.processes()

    def ask(self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"") -> RemotingCommand:
        with Wire(self.broker, LIMIT_S) as wire:
            return wire.invoke(code, ext, body)

    def assert_unharmed(self) -> None:
        for name, process in self.processes.items():
            assert process.is_running(), name
            assert process.status() != psutil.STATUS_ZOMBIE, name
        after = self.cluster.statuses()
        assert after.keys() == self.before.keys()
        for node_id, status in after.items():
            before = self.before[node_id]
            assert (status["term"], status["leaderId"]) == (before["term"], self.leader), status
            assert status["beginIndex"] == before["beginIndex"]
            assert status["committedIndex"] >= before["committedIndex"]
            assert status["impairment"] is None

    def stored(self) -> list[bytes]:
        """The bodies in the topic's first queue, in order."""
        bodies: list[bytes] = []
        with Wire(self.broker, LIMIT_S) as wire:
            while True:
                wire.send_bytes(pull_frame(TOPIC, len(bodies), len(bodies) + 1))
                answer = wire.read_command()
                if answer.code != ResponseCode.SUCCESS:
                    assert answer.code == ResponseCode.PULL_NOT_FOUND, answer
                    return bodies
                bodies += [record.body for record in decode_records(answer.body)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    own = Cluster(tmp_path_factory.mktemp("attacked"))
    try:
        own.start({"enablePropertyFilter": "true"})
        yield own
    finally:
        own.stop()


def forge_members(attacked: Attacked, folder: Path) -> None:
    """Heartbeats of later terms, a reset of the log, acknowledgements, votes: as any member, to any node."""
    cluster = attacked.cluster
    for node_id, node in cluster.nodes.items():
        for sender in cluster.nodes.keys() - {node_id}:
            data = forged(attacked.before[node_id], sender)
            for context in (None, own_certificate(folder, sender)):
                send(node.replication, data, context)


def take_the_route(attacked: Attacked) -> None:
    """103, among others with the largest version, and 104, 322, 904 for each node, with and without TLS."""
    cluster = attacked.cluster
    addrs = dict(enumerate(node.remoting for node in cluster.nodes.values()))
    for tls in (None, ClientTls(cluster.data / "certificates" / "ca.pem").credentials()):
        with Connection(cluster.namesrv, LIMIT_S, tls) as connection:
            for request in forged_registrations(addrs):
                answer = connection.invoke(request)
                assert answer.code == ResponseCode.NO_PERMISSION, (request.code, answer)
    assert broker_of(cluster.namesrv) == attacked.broker


def inflate_a_registration(attacked: Attacked) -> None:
    """59 KB that grow to 64 MiB."""
    request = registration(attacked.broker)
    request.ext_fields |= {"compressed": "true", "bodyCrc32": "0"}
    request.body = zlib.compress(bytes(64 * MIB), 9)
    with Peak(attacked.processes["namesrv"]) as peak, Wire(attacked.cluster.namesrv, LIMIT_S) as wire:
        answer = wire.invoke(request.code, request.ext_fields, request.body)
        assert answer.code == ResponseCode.NO_PERMISSION, answer
    assert peak.grown_bytes < 32 * MIB, peak.grown_bytes


def send_lists_without_end(attacked: Attacked) -> None:
    """15 MB of empty lists: each would be an object of 56 bytes."""
    for code in (RequestCode.HEART_BEAT, RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
        answer = attacked.ask(code, body=LISTS)
        assert answer.code == ResponseCode.SYSTEM_ERROR, answer


def filter_by_minus_signs(attacked: Attacked) -> None:
    expression = "a > " + "-" * 65_000
    filtered = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "queueOffset": "0", "maxMsgNums": "1"}
    filtered |= {"sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "1"}
    filtered |= {"subscription": expression, "expressionType": "SQL92"}
    pulled = attacked.ask(RequestCode.PULL_MESSAGE, filtered)
    assert pulled.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED, pulled
    subscription = {"topic": TOPIC, "subString": expression, "expressionType": "SQL92"}
    checked = {"clientId": "c", "group": GROUP, "subscriptionData": subscription}
    answer = attacked.ask(RequestCode.CHECK_CLIENT_CONFIG, body=orjson.dumps(checked))
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED, answer


def send_half_frames(attacked: Attacked) -> None:
    half = struct.pack(">II", 15 * MIB, 1000) + bytes(15 * MIB - 100)
    with Peak(attacked.processes[attacked.leader]) as peak, ExitStack() as held:
        peers = held.enter_context(flood(attacked.broker, HALF_FRAMES))
        for peer in peers:
            with suppress(OSError):
                peer.sendall(half)
        assert sum(map(is_closed, peers)) > HALF_FRAMES / 2
    assert peak.grown_bytes < HELD_MAX, peak.grown_bytes


def nest_fields_deep(attacked: Attacked) -> None:
    with Wire(attacked.broker, LIMIT_S) as wire:
        wire.send_bytes(frame(b'{"code":310,"opaque":1,"extFields":{"a":' + b"[" * 900 + b"]" * 900 + b"}}"))
        assert wire.is_closed_by_peer()


def commit_beyond_the_end(attacked: Attacked) -> None:
    for offset in (INT64_MAX, 2**53, -INT64_MAX):
        ext = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "commitOffset": str(offset)}
        answer = attacked.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
        assert answer.code == ResponseCode.SYSTEM_ERROR, (offset, answer)
    kept = attacked.ask(
        RequestCode.QUERY_CONSUMER_OFFSET,
        {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "setZeroIfNotFound": "false"},
    )
    assert kept.code == ResponseCode.QUERY_NOT_FOUND, kept


def test_every_attack_is_refused_while_a_producer_sends(cluster: Cluster, tmp_path: Path) -> None:
    attacked = Attacked(cluster)
    with Load(attacked.broker) as load:
        load.assert_goes_on()
        forge_members(attacked, tmp_path)
        for attack in (
            take_the_route,
            inflate_a_registration,
            send_lists_without_end,
            filter_by_minus_signs,
            nest_fields_deep,
            commit_beyond_the_end,
            send_half_frames,
        ):
            attack(attacked)
            load.assert_goes_on()
            attacked.assert_unharmed()
    assert load.failure is None
    assert attacked.stored() == load.acknowledged
    open_to_others = [path for path in cluster.data.rglob("*") if path.lstat().st_mode & 0o077]
    assert open_to_others == []
    assert "Traceback" not in cluster.log_text()
