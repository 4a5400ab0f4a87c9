"""What needs a cluster of its own settings: reading from followers, where consumers of old topics begin, and
transactions that end at a node that leads no more.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from remoting.codes import RequestCode
from tests.compat.programs import FILE, JAVA, Client, Program, versions
from tests.compat.stage import Stage
from tests.integration.checks import assert_each_exactly_once, assert_places_unique
from tests.integration.client_runs import Report
from tests.integration.messages import Sample, samples
from tests.integration.wire import call

pytestmark = pytest.mark.integration
SETTINGS = {
    "slaveReadEnable": "true",
    "accessMessageInMemoryMaxRatio": "0",
    "transactionTimeOut": "600000",
}
"""Every message counts as cold; nobody is asked about a transaction."""


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    running = Stage(tmp_path_factory.mktemp("apart"))
    try:
        running.start(SETTINGS)
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module", params=versions(JAVA))
def client(request: pytest.FixtureRequest, apart: Stage, tmp_path_factory: pytest.TempPathFactory) -> Client:
    return Client(request.param, apart.namesrv, tmp_path_factory.mktemp("apart-clients"))


def bodies(program: Program) -> Report:
    return [line for line in program.report if "body" in line]


def messages_got(stage: Stage, node_id: str) -> int:
    """How many messages the node has given to consumers."""
    answer = call(stage.cluster.address(node_id), RequestCode.GET_BROKER_RUNTIME_INFO)
    return int(answer.body.partition(b'"msgGetTotalTodayNow":"')[2].partition(b'"')[0])


def test_consumer_that_lags_reads_from_followers_and_misses_nothing(apart: Stage, client: Client) -> None:
    topic, group = apart.topic("Cold", 4), apart.unique("Cold")
    client.run("produce", topic, f"{topic}Producers", sync=200)
    before = sum(messages_got(apart, node_id) for node_id in apart.follower_ids())
    with client.start("consumers", topic, group, batch=1) as consumers:
        consumers.wait_until("the old ones", lambda: len(bodies(consumers)) >= 200)
        client.run("produce", topic, f"{topic}After", ordered=200)
        consumers.wait_until("the new ones", lambda: len(bodies(consumers)) >= 400)
        consumers.stop()
    assert_each_exactly_once(bodies(consumers), samples(sync=200, ordered=200))
    assert_places_unique(bodies(consumers))
    assert sum(messages_got(apart, node_id) for node_id in apart.follower_ids()) > before


@pytest.mark.long
def test_consumer_goes_back_to_the_leader_when_its_follower_dies(apart: Stage, client: Client) -> None:
    topic, group = apart.topic("Orphan", 4), apart.unique("Orphan")
    with client.start("consumers", topic, group) as consumers:
        client.run("produce", topic, f"{topic}Producers", sync=40)
        consumers.wait_until("the first", lambda: len(bodies(consumers)) >= 40)
        for node_id in apart.follower_ids()[:1]:
            apart.cluster.kill(node_id)
        client.run("produce", topic, f"{topic}After", ordered=40)
        wanted = {sample.body for sample in samples(sync=40, ordered=40)}
        consumers.wait_until("all", lambda: {line["body"] for line in bodies(consumers)} == wanted, 90.0)
        consumers.stop()
    apart.make_whole()


@pytest.mark.parametrize(
    "where",
    [
        "CONSUME_FROM_LAST_OFFSET",
        pytest.param("CONSUME_FROM_TIMESTAMP", marks=pytest.mark.long),
        pytest.param("CONSUME_FROM_FIRST_OFFSET", marks=pytest.mark.long),
    ],
)
def test_new_group_of_an_old_topic_begins_where_it_says(apart: Stage, client: Client, where: str) -> None:
    topic, group = apart.topic("Begin", 2), apart.unique("Begin")
    client.run("produce", topic, f"{topic}Old", sync=10)
    time.sleep(1.1)  # the time to begin at is told in whole seconds
    options = {}
    if where == "CONSUME_FROM_TIMESTAMP":
        options["timestamp"] = time.strftime("%Y%m%d%H%M%S")
        client.run("produce", topic, f"{topic}Middle", oneway=5)
    with client.start("consumers", topic, group, **{"from": where}, **options) as consumers:
        consumers.wait_lines("it runs", event="started")
        time.sleep(2.0)  # it has looked for its offsets
        client.run("produce", topic, f"{topic}New", ordered=10)
        expected = {
            "CONSUME_FROM_LAST_OFFSET": samples(ordered=10),
            "CONSUME_FROM_TIMESTAMP": samples(oneway=5, ordered=10),
            "CONSUME_FROM_FIRST_OFFSET": samples(sync=10, ordered=10),
        }[where]
        consumers.wait_until("all", lambda: len(bodies(consumers)) >= len(expected))
        consumers.stop()
    assert_each_exactly_once(bodies(consumers), expected)


def test_transaction_ends_at_the_node_that_prepared_it_though_another_leads(
    apart: Stage, client: Client, tmp_path: Path
) -> None:
    """The producer says commit where it sent the half message; that node hands it on."""
    topic, group = apart.topic("Ended", 2), apart.unique("Ended")
    options = {"count": 1, "poll_ms": 30_000, "go": FILE, "end": FILE}
    with (
        client.start("consumers", topic, apart.unique("Readers")) as consumers,
        client.start("transact", topic, group, **options) as producing,
    ):
        producing.wait_lines("it is prepared", event="executing", number=0)
        apart.transfer_leader(apart.follower_ids()[0])
        producing.tell("go")
        consumers.wait_until("it is committed", lambda: bool(bodies(consumers)), 20.0)
        producing.tell("end")
        producing.finish()
        consumers.stop()
    assert [line["body"] for line in bodies(consumers)] == [Sample("transaction", 0).body]
    assert producing.lines(event="checked") == []
