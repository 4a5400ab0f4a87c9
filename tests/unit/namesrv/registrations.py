"""Registrations as brokers send them, for the tests of this folder."""

import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

import orjson

from namesrv.route_info import DataVersion, Registrant, Registration
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.route import QueueData

MASTER = "127.0.0.1:10911"
SLAVE = "127.0.0.1:10921"
THIRD = "127.0.0.1:10931"


def by(connection_id: int, host: str = "127.0.0.1", *, is_proven: bool = False) -> Registrant:
    return Registrant(connection_id, host, is_proven)


def queue_data(broker_name: str = "broker-a", queues: int = 4, perm: int = 6, sys_flag: int = 0) -> QueueData:
    return QueueData(broker_name, queues, queues, perm, sys_flag)


def registration(
    addr: str = MASTER,
    broker_id: int = 0,
    *,
    broker_name: str = "broker-a",
    cluster: str = "DefaultCluster",
    term: int = 1,
    counter: int = 1,
    topics: Mapping[str, QueueData] | None = None,
    timeout_ms: int = 120_000,
) -> Registration:
    if topics is None:
        topics = {"T": queue_data(broker_name)}
    version = DataVersion(term, 1_700_000_000_000, counter)
    return Registration(cluster, broker_name, broker_id, addr, addr + "0", timeout_ms, version, topics)


def body(topics: Mapping[str, Mapping[str, object]], term: int = 1, counter: int = 1) -> bytes:
    """The plain body of request 103."""
    wrapper = {
        "dataVersion": {"counter": counter, "stateVersion": term, "timestamp": 1_700_000_000_000},
        "topicConfigTable": topics,
    }
    return orjson.dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapper})


def compressed_body(topics: list[str], count: int | None = None) -> bytes:
    """The compressed body of request 103, from topic texts."""
    version = DataVersion(1, 1_700_000_000_000, 1).to_json()
    parts = [struct.pack(">i", len(version)), version]
    parts.append(struct.pack(">i", len(topics) if count is None else count))
    for topic in topics:
        parts += [struct.pack(">i", len(topic.encode())), topic.encode()]
    parts += [struct.pack(">i", 2), b"[]"]
    return zlib.compress(b"".join(parts), 9)


TOPIC_CONFIG = {
    "order": False,
    "perm": 6,
    "readQueueNums": 4,
    "topicFilterType": "SINGLE_TAG",
    "topicName": "T",
    "topicSysFlag": 0,
    "writeQueueNums": 4,
}


def register_request(
    addr: str = MASTER,
    broker_id: int = 0,
    *,
    term: int = 1,
    topics: tuple[str, ...] = ("T",),
    extra: Mapping[str, str] | None = None,
    payload: bytes | None = None,
) -> RemotingCommand:
    """Request 103 as a Java broker sends it."""
    if payload is None:
        payload = body({topic: {**TOPIC_CONFIG, "topicName": topic} for topic in topics}, term)
    ext = {
        "brokerName": "broker-a",
        "brokerAddr": addr,
        "clusterName": "DefaultCluster",
        "haServerAddr": addr + "0",
        "brokerId": str(broker_id),
        "compressed": "false",
        "bodyCrc32": str(zlib.crc32(payload) & 0x7FFFFFFF),
        **(extra or {}),
    }
    return RemotingCommand(RequestCode.REGISTER_BROKER, ext_fields=ext, body=payload)


def account(key: str, secret: str, admin: str = "") -> str:
    """One account as it stands in the file."""
    return f'[[accounts]]\naccess_key = "{key}"\nsecret_key = "{secret}"\n{admin and f"admin = {admin}"}\n'


def accounts_file(folder: Path, *rows: str, mode: int = 0o600) -> Path:
    """Written beside and renamed, as an operator should."""
    beside = folder / "beside"
    beside.write_text("\n".join(rows))
    beside.chmod(mode)
    return beside.replace(folder / "accounts.toml")
