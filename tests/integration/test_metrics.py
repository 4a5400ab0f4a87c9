"""What Prometheus reads from a running cluster, before and after its leader is killed."""

from __future__ import annotations

import asyncio
import json
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ledgermq.client import Message, Producer
from tests.integration.cluster import Cluster
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.integration
SENT = 50
SLOW_MS = 250
TOPIC = "Metered"


@pytest.fixture(scope="module")
def breakable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose leader is killed here."""
    cluster = Cluster(tmp_path_factory.mktemp("metered"))
    try:
        cluster.start({"logFormat": "json", "slowPutMs": str(SLOW_MS)}, admin=True)
        yield cluster
    finally:
        cluster.stop()


def scrape(url: str) -> dict[str, float]:
    """Values by name and labels, these in alphabetical order."""
    with urllib.request.urlopen(url, timeout=5) as answer:
        text = answer.read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f'{name}="{sample.labels[name]}"' for name in sorted(sample.labels))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def scrape_node(cluster: Cluster, node_id: str) -> dict[str, float]:
    return scrape(cluster.nodes[node_id].metrics)


def counted(cluster: Cluster, nodes: list[str]) -> float:
    name = f'ledgermq_put_messages_total{{topic="{TOPIC}"}}'
    return sum(scrape_node(cluster, node_id).get(name, 0) for node_id in nodes)


def send(cluster: Cluster) -> None:
    async def all_of_them() -> None:
        async with Producer(cluster.namesrv) as producer:
            await asyncio.gather(*(producer.send(Message(TOPIC, b"x" * 100)) for _ in range(SENT)))

    asyncio.run(all_of_them())


def send_slowly(cluster: Cluster, follower: str) -> None:
    """One message, whose only possible majority is held up meanwhile."""

    async def one() -> None:
        cluster.kill(follower, signal.SIGSTOP)
        async with Producer(cluster.namesrv) as producer:
            sending = asyncio.create_task(producer.send(Message(TOPIC, b"x")))
            await asyncio.sleep(2 * SLOW_MS / 1_000)
            cluster.resume(follower)
            await sending

    asyncio.run(one())


def test_figures_are_those_of_now_and_go_on_after_a_failover(breakable: Cluster) -> None:
    cluster = breakable
    send(cluster)
    old = cluster.wait_leader()
    wait_for("all that was sent is counted", lambda: counted(cluster, list(cluster.nodes)) == SENT, 10)
    before = scrape_node(cluster, old)
    assert before['ledgermq_node_role{role="leader"}'] == 1
    assert before["ledgermq_ack_seconds_count"] > 0
    assert before["ledgermq_fsync_seconds_count"] > 0
    assert before["ledgermq_put_batch_messages_sum"] == SENT
    assert before['ledgermq_requests_total{request="SEND_MESSAGE_V2"}'] >= SENT
    assert before["ledgermq_log_committed_index"] <= before["ledgermq_log_end_index"]
    assert sum(name.startswith("ledgermq_peer_lag_entries") for name in before) == 2
    assert scrape(f"{cluster.admin}/metrics")['ledgermq_cluster_writable{group="broker-a"}'] == 1

    cluster.kill(old)
    survivors = [node_id for node_id in cluster.nodes if node_id != old]
    wait_for("the old leader is gone", lambda: cluster.has_ended(old), 10)
    new = wait_for(
        "a survivor leads",
        lambda: next((node for node in survivors if scrape_node(cluster, node)["ledgermq_writable"]), None),
        20,
    )
    send(cluster)
    wait_for("what was sent since is counted", lambda: counted(cluster, survivors) == SENT, 10)
    (other,) = (node_id for node_id in survivors if node_id != new)
    leading, following = scrape_node(cluster, new), scrape_node(cluster, other)
    assert leading["ledgermq_term"] == following["ledgermq_term"] > before["ledgermq_term"]
    assert [leading[f'ledgermq_node_role{{role="{role}"}}'] for role in ("leader", "follower")] == [1, 0]
    assert [following[f'ledgermq_node_role{{role="{role}"}}'] for role in ("leader", "follower")] == [0, 1]
    assert leading[f'ledgermq_peer_connected{{peer="{old}"}}'] == 0
    assert [name for name in following if "peer_lag" in name or "consumer_lag" in name] == []
    assert leading["ledgermq_elections_total"] >= 2
    leads = f'ledgermq_cluster_node_leader{{group="broker-a",node="{new}"}}'
    wait_for("the admin service sees it", lambda: scrape(f"{cluster.admin}/metrics")[leads] == 1, 5)
    seen = scrape(f"{cluster.admin}/metrics")
    assert seen[f'ledgermq_cluster_node_up{{group="broker-a",node="{old}"}}'] == 0


def test_every_line_of_the_log_is_an_object_and_a_slow_put_names_its_requests(breakable: Cluster) -> None:
    leader = breakable.wait_leader()
    alive = [node_id for node_id in breakable.nodes if not breakable.has_ended(node_id)]
    assert len(alive) == 2, "the test before has killed one"
    send_slowly(breakable, next(node_id for node_id in alive if node_id != leader))
    logs = sorted(Path(breakable.data / "logs").glob("n*.log"))
    lines = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    assert {line["node"] for line in lines if line["logger"] == "broker.app"} == {
        f"broker-a/{node_id}" for node_id in breakable.nodes
    }
    changes = [line for line in lines if line.get("event") == "RoleChanged"]
    assert {line["fields"]["role"] for line in changes} >= {"LEADER", "FOLLOWER"}
    slow = [line for line in lines if line["logger"] == "broker.monitoring.put_metrics"]
    assert slow
    assert all(line["level"] == "WARNING" and line["batch"] > 0 and line["requests"] for line in slow)
    assert all(line["replicate_ms"] > 0 for line in slow)
