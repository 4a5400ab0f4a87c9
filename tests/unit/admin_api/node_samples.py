"""Node statuses of a group of three, as brokers would answer them."""

from typing import Any

from admin_api.sources.brokers import Listed
from broker.admin.types import NodeRole, NodeStatusMessage, PeerView

ADDRESSES = {"n0": "127.0.0.1:10911", "n1": "127.0.0.1:10921", "n2": "127.0.0.1:10931"}
REPLICATION = {"n0": "127.0.0.1:10914", "n1": "127.0.0.1:10924", "n2": "127.0.0.1:10934"}


def peer(node_id: str, **facts: Any) -> PeerView:
    facts.setdefault("remoting_address", ADDRESSES.get(node_id))
    return PeerView(id=node_id, replication_address=REPLICATION.get(node_id, "127.0.0.1:1"), **facts)


def node_status(node_id: str, role: NodeRole, **facts: Any) -> NodeStatusMessage:
    values: dict[str, Any] = {
        "cluster": "DefaultCluster",
        "group": "group-a",
        "broker_name": "broker-a",
        "node_id": node_id,
        "role": role,
        "term": 3,
        "leader_id": "n0",
        "is_writable": role is NodeRole.LEADER,
        "durability": "persisted",
        "remoting_address": ADDRESSES[node_id],
        "replication_address": REPLICATION[node_id],
        "begin_index": 0,
        "end_index": 9,
        "committed_index": 8,
        "persisted_index": 9,
        "applied_index": 8,
        "end_position": 1000,
        "committed_position": 900,
        "started_at_ms": 5,
        "pid": 77,
    }
    return NodeStatusMessage(**{**values, **facts})


def listed(*node_ids: str, leader: str = "n0") -> list[Listed]:
    return [
        Listed(
            "DefaultCluster", "broker-a", 0 if node_id == leader else int(node_id[1:]) + 1, ADDRESSES[node_id]
        )
        for node_id in node_ids
    ]
