"""The whole text of one broker, as a scrape reads it."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from broker.consume.feature import pull_feature
from broker.monitoring.exporter import QUOTA_NAMES_MAX, make_exporter
from broker.monitoring.traffic_figures import OTHER
from broker.send.feature import send_feature
from broker.state.changes import CommitOffsets
from commitlog.dispatch import DispatchBatch, DispatchRequest
from dledger.core.status import NodeStatus, PeerStatus, unknown_peers
from dledger.core.types import PushState, Role
from dledger.fs import DiskWatch, OsFs
from dledger.transport import OlderNode
from remoting.quotas import Kind
from remoting.server import RemotingServer
from tests.support.broker_parts import BrokerParts, FakeEngine, make_parts
from tests.support.fake_log import FakeLog
from tests.support.reserving_disk import BLOCK, reserve_blocks

PEERS = (
    PeerStatus("n1", PushState.APPEND, 7, 8, 2, 300, 40, pushed_bytes=900),
    PeerStatus("n2", None, None, None, None, None, None),
)
LEADING = NodeStatus(Role.LEADER, 3, "n0", 0, 9, 8, 9, 1, (), PEERS, {}, (), None, 5)
FOLLOWING = NodeStatus(
    Role.FOLLOWER, 4, "n1", 0, 9, 9, 9, -1, (), unknown_peers(("n1", "n2")), {}, (), None, 6
)


class Node:
    """A broker's parts, and what a scrape of it finds."""

    def __init__(self, tmp_path: Path, has_engine: bool = True, **values: object) -> None:
        self.log = FakeLog()
        self.engine = FakeEngine(node_status=LEADING, connected=frozenset({"n1"}))
        self.parts: BrokerParts = make_parts(
            tmp_path, self.log, self.engine if has_engine else None, metricsPort=1, **values
        )
        core = self.parts.core
        self.parts.add(
            send_feature(core, lambda: True, lambda out_ms: True), pull_feature(core, self.parts.consumers)
        )
        self.waiting = dict(self.parts.features.waiting)
        server = RemotingServer(self.parts.router, "127.0.0.1", 0)
        self.exporter = make_exporter(core, self.waiting, server)

    async def samples(self) -> list[Sample]:
        text = (await self.exporter.render()).decode()
        return [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    async def read(self) -> dict[str, float]:
        """Values by name and labels, as a query would write them."""
        found = {}
        for sample in await self.samples():
            labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
        return found

    def put(self, topic: str, count: int) -> None:
        rows = [DispatchRequest(n, topic, 0, n, 1_000 * n, 150, 0, 0, 0) for n in range(count)]
        self.parts.statistics.put(DispatchBatch.of(rows))


@pytest.fixture
async def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_a_leader_shows_its_marks_and_how_far_its_followers_are(node: Node) -> None:
    found = await node.read()
    assert found['ledgermq_node_role{role="leader"}'] == 1
    assert (found["ledgermq_term"], found["ledgermq_elections_total"], found["ledgermq_writable"]) == (
        3,
        5,
        1,
    )
    assert [found[f"ledgermq_log_{mark}_index"] for mark in ("begin", "end", "persisted", "committed")] == [
        *(0, 9, 9, 8)
    ]
    assert found['ledgermq_peer_lag_entries{peer="n1"}'] == 2
    assert found['ledgermq_peer_lag_bytes{peer="n1"}'] == 300
    assert found['ledgermq_peer_pushed_bytes_total{peer="n1"}'] == 900
    assert found['ledgermq_peer_connected{peer="n2"}'] == 0
    assert 'ledgermq_peer_lag_entries{peer="n2"}' not in found


async def test_after_a_failover_nothing_of_a_leader_is_left(node: Node) -> None:
    node.log.set_writable(True)
    await node.parts.state.propose(CommitOffsets("g", "t", {0: 1}))
    node.put("t", 3)
    assert any("lag" in name for name in await node.read())
    node.engine.node_status = FOLLOWING
    node.log.set_writable(False)
    found = await node.read()
    assert found['ledgermq_node_role{role="leader"}'] == 0
    assert found['ledgermq_node_role{role="follower"}'] == 1
    assert (found["ledgermq_term"], found["ledgermq_writable"]) == (4, 0)
    assert [name for name in found if "lag" in name or "last_contact" in name] == []
    assert found['ledgermq_put_messages_total{topic="t"}'] == 3


async def test_who_recover_has_left_behind_is_shown_by_both_sides(node: Node) -> None:
    found = await node.read()
    assert (found["ledgermq_outdated"], found["ledgermq_older_nodes"]) == (0, 0)
    node.engine.newer_generation = 1
    node.engine.refused = [OlderNode("n1", ("127.0.0.1", 5), "127.0.0.1:6", 0, 0.0)]
    found = await node.read()
    assert (found["ledgermq_outdated"], found["ledgermq_older_nodes"]) == (1, 1)


async def test_topics_and_groups_beyond_the_bound_count_as_one(tmp_path: Path) -> None:
    node = Node(tmp_path, metricsTopicsMax=2)
    for number in range(5):
        node.put(f"t{number}", 10 - number)
        node.parts.statistics.got(f"t{number}", "g", 0, 10 - number, 100, 1)
    found = await node.read()
    puts = {name: value for name, value in found.items() if name.startswith("ledgermq_put_messages_total")}
    assert puts == {
        'ledgermq_put_messages_total{topic="t0"}': 10,
        'ledgermq_put_messages_total{topic="t1"}': 9,
        f'ledgermq_put_messages_total{{topic="{OTHER}"}}': 21,
    }
    assert found[f'ledgermq_get_messages_total{{group="{OTHER}",topic="{OTHER}"}}'] == 21
    assert found['ledgermq_get_bytes_total{group="g",topic="t1"}'] == 100


async def test_what_the_full_table_of_counters_has_no_room_for_counts_as_others(node: Node) -> None:
    node.parts.statistics._items_max = 3
    node.put("t0", 4)
    assert len(node.parts.statistics) == 1
    node.parts.statistics.got("t0", "g", 0, 2, 20, 1)
    assert len(node.parts.statistics) == 3, "it is full"
    for topic in ("t1", "t2"):
        node.put(topic, 3)
        node.parts.statistics.got(topic, "g", 0, 1, 10, 1)
    found = await node.read()
    assert found['ledgermq_put_messages_total{topic="t0"}'] == 4
    assert found[f'ledgermq_put_messages_total{{topic="{OTHER}"}}'] == 6
    assert found[f'ledgermq_put_bytes_total{{topic="{OTHER}"}}'] == 900
    assert found['ledgermq_get_messages_total{group="g",topic="t0"}'] == 2
    assert found[f'ledgermq_get_messages_total{{group="{OTHER}",topic="{OTHER}"}}'] == 2
    assert (await node.read())[f'ledgermq_put_messages_total{{topic="{OTHER}"}}'] == 6, "a look adds nothing"


async def test_dead_letters_are_counted_by_their_group(node: Node) -> None:
    node.put("%DLQ%orders", 4)
    assert (await node.read())['ledgermq_dlq_messages_total{group="orders"}'] == 4


async def test_requests_are_named_as_the_protocol_names_them(node: Node) -> None:
    counts = node.parts.router.counts
    counts.add(310, 6)
    counts.add(-1, 2)
    counts.refuse(310, 14)
    found = await node.read()
    assert found['ledgermq_requests_total{request="SEND_MESSAGE_V2"}'] == 6
    assert found['ledgermq_requests_total{request="unknown"}'] == 2
    name = 'ledgermq_request_errors_total{code="SERVICE_NOT_AVAILABLE",request="SEND_MESSAGE_V2"}'
    assert found[name] == 1


async def test_what_waits_is_shown_where_it_is_known(node: Node) -> None:
    node.waiting["transaction"] = lambda: None
    found = await node.read()
    assert found['ledgermq_waiting{kind="send_for_topic"}'] == 0
    assert 'ledgermq_waiting{kind="transaction"}' not in found


async def test_a_disk_is_as_full_as_its_limit_counts_it(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """An alert compares the two figures: by the total of a disk the node would stop before it."""
    reserve_blocks(monkeypatch, used=86, free=9, total=100)
    read = await node.read()
    limit = DiskWatch(OsFs(), node.parts.config.store_path_root_dir, 0.90, 1_000, lambda: 0.0)
    assert read["ledgermq_disk_used_ratio"] == limit.used_ratio() == pytest.approx(86 / 95)
    assert read["ledgermq_disk_used_ratio"] > read["ledgermq_disk_full_ratio"]
    assert limit.is_full()
    assert read["ledgermq_disk_free_bytes"] == 9 * BLOCK


async def test_a_node_without_a_group_has_no_term(tmp_path: Path) -> None:
    node = Node(tmp_path, has_engine=False)
    found = await node.read()
    assert "ledgermq_term" not in found
    assert found["ledgermq_writable"] == 1


async def test_a_name_is_shown_once(node: Node) -> None:
    """A scrape with two samples of the same name and labels is refused as a whole."""
    node.put("other", 2)
    node.parts.statistics.got("a@b", "g", 0, 1, 1, 1)
    keys = [(sample.name, *sorted(sample.labels.items())) for sample in await node.samples()]
    assert len(keys) == len(set(keys))


async def test_clients_over_their_quotas_are_counted_by_quota_and_by_name(node: Node) -> None:
    tallies = node.parts.core.shares.tallies
    for number in range(30):
        for _ in range(number + 1):
            tallies.slowed("address", f"10.0.0.{number}", Kind.REQUESTS)
    tallies.refused("user", "alice", Kind.BYTES, "1 bytes a second", 70, 1.0)
    found = await node.read()
    assert found['ledgermq_quota_slowed_total{of="address",quota="requests"}'] == 465
    assert found['ledgermq_quota_refused_total{of="user",quota="bytes"}'] == 70
    names = [name for name in found if name.startswith("ledgermq_quota_name_over_total")]
    assert found['ledgermq_quota_name_refused_total{name="alice",of="user"}'] == 70
    assert len(names) == QUOTA_NAMES_MAX + 1
    assert found['ledgermq_quota_name_over_total{name="10.0.0.29",of="address"}'] == 30
