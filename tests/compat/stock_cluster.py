"""RocketMQ's own broker in Java with messages in it, a stock consumer beside it, an admin service over it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.fastjson import loads
from remoting.record import format_properties
from tests.compat.programs import Client, Program
from tests.integration.test_admin_schema import serving
from tests.integration.waiting import wait_for
from tests.integration.wire import call
from tests.spark.stock_broker import PORTS_FOR_ONE, StockBroker

VERSIONS = {"4.9.7": "4.9.8", "5.5.0": "5.5.0"}
"""Of the broker, and of the client beside it."""
PORTS_FROM = 12_000
LIMIT_S = 60.0
TOPIC, GROUP = "Orders", "billing"
QUEUES, SENT = 4, 24


@dataclass
class StockCluster:
    """`ids`: the offset message ids of what is in TOPIC, by number; number n is in queue n % QUEUES."""

    version: str
    broker: StockBroker
    http: httpx.Client
    ids: list[str]
    consumer: Program

    @property
    def is_4(self) -> bool:
        return self.version.startswith("4.")

    def get(self, path: str, status: int = 200, **params: Any) -> Any:
        return _answered(self.http.get(f"/api/v1{path}", params=params), status)

    def try_change(self, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        """The answer to the change itself, its preview confirmed; or to a preview that is refused."""
        url = f"/api/v1{path}"
        preview = self.http.request(method, url, json=body, params={"dryRun": True})
        if preview.is_error:
            return _answered(preview, status)
        query = {"dryRun": "false", "confirmation": preview.json()["confirmation"] or ""}
        return _answered(self.http.request(method, url, json=body, params=query), status)

    def change(self, method: str, path: str, body: Any = None) -> dict[str, tuple[str | None, str | None]]:
        """The preview's effects, by subject, of a change that was then wholly made."""
        result = self.try_change(method, path, body)
        assert all(outcome["ok"] for outcome in result["outcomes"]), result
        return {each["subject"]: (each["before"], each["after"]) for each in result["effects"]}

    def ask(self, code: int, body: bytes = b"", /, **ext: object) -> RemotingCommand:
        """The broker itself, as mqadmin asks it."""
        return call(self.broker.address, code, {key: str(value) for key, value in ext.items()}, body)

    def table(self, code: int, name: str, /, **ext: object) -> dict[str, Any]:
        """A member of an answer's body."""
        found = loads(self.ask(code, **ext).body)[name]
        assert isinstance(found, dict)
        return found

    def send(self, topic: str, body: bytes, queue_id: int = -1, **properties: str) -> str:
        """As a client would; the offset message id."""
        ext = {"a": "P", "b": topic, "c": "TBW102", "d": QUEUES, "e": queue_id, "f": 0, "h": 0, "j": 0}
        ext |= {"g": time.time_ns() // 1_000_000, "i": format_properties(properties).decode()}
        return self.ask(RequestCode.SEND_MESSAGE_V2, body, **ext).ext_fields["msgId"]

    def commit(self, group: str, offsets: dict[int, int]) -> None:
        """As a consumer of TOPIC would."""
        for queue_id, offset in offsets.items():
            ext = {"consumerGroup": group, "topic": TOPIC, "queueId": queue_id, "commitOffset": offset}
            self.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **ext)

    def stored(self, group: str) -> dict[int, int]:
        """Its offsets in TOPIC, as the broker keeps them."""
        table = self.table(RequestCode.GET_ALL_CONSUMER_OFFSET, "offsetTable")
        return {int(queue_id): offset for queue_id, offset in table.get(f"{TOPIC}@{group}", {}).items()}

    def is_consumed(self) -> bool:
        """Whether GROUP has consumed all that is in TOPIC, and the broker knows it."""
        return len(self.got()) == SENT and sum(self.stored(GROUP).values()) == SENT

    def got(self) -> Counter[tuple[int, int]]:
        """What the consumer of GROUP got: (queue, offset) -> how often."""
        lines = self.consumer.report
        return Counter((each["queue"], each["offset"]) for each in lines if each.get("topic") == TOPIC)


def _answered(answer: httpx.Response, status: int) -> Any:
    assert answer.status_code == status, f"{answer.request.method} {answer.url}: {answer.text}"
    return answer.json()


@contextmanager
def stock_clusters(folder: Path) -> Iterator[dict[str, StockCluster]]:
    """One of each version, started side by side; where GROUP has consumed all that is in TOPIC."""
    brokers = {}
    for number, version in enumerate(VERSIONS):
        (at := folder / version).mkdir()
        brokers[version] = StockBroker(at, version, PORTS_FROM + number * PORTS_FOR_ONE)
    with ExitStack() as stack:
        for broker in brokers.values():
            stack.callback(broker.kill)
        with ThreadPoolExecutor(len(brokers)) as pool:  # at its end none starts a process any more
            for begun in [pool.submit(broker.start) for broker in brokers.values()]:
                begun.result()
        clusters = {version: _filled(stack, broker) for version, broker in brokers.items()}
        for version, each in clusters.items():
            wait_for(f"the consumer beside {version} has everything", each.is_consumed, LIMIT_S)
        yield clusters


def _filled(stack: ExitStack, broker: StockBroker) -> StockCluster:
    url = stack.enter_context(serving(broker.namesrv))
    headers = {"X-LedgerMQ-Request": "1"}
    http = stack.enter_context(httpx.Client(base_url=url, headers=headers, timeout=LIMIT_S))
    client = Client(VERSIONS[broker.version], broker.namesrv, broker.folder)
    topic = {"name": TOPIC, "readQueues": QUEUES, "writeQueues": QUEUES}
    made = http.post("/api/v1/topics", json=topic)
    assert made.is_success, made.text
    consumer = stack.enter_context(client.start("consumers", TOPIC, GROUP))
    cluster = StockCluster(broker.version, broker, http, [], consumer)
    for number in range(SENT):
        properties = {"UNIQ_KEY": f"{number:032X}", "KEYS": f"key-{number} all", "TAGS": f"t{number % 3}"}
        body = f'{{"number":{number}}}'.encode()
        cluster.ids.append(cluster.send(TOPIC, body, number % QUEUES, **properties))
    return cluster
