"""What a client's reports must show."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from tests.integration.client_runs import Report
from tests.integration.messages import Sample

CONTENT = ("body", "keys", "tags", "number", "word")


def content(received: dict[str, Any]) -> dict[str, Any]:
    return {name: received[name] for name in CONTENT}


def assert_each_exactly_once(received: Report, expected: Iterable[Sample]) -> None:
    """Every expected message was consumed once with its whole content, and nothing else was."""
    by_body = {sample.body: sample for sample in expected}
    counts = Counter(message["body"] for message in received)
    missing = sorted(by_body.keys() - counts.keys())
    strangers = sorted(counts.keys() - by_body.keys())
    repeated = sorted(body for body, count in counts.items() if count > 1)
    assert (missing, strangers, repeated) == ([], [], []), (
        f"{len(missing)} not consumed {missing[:5]}, {len(strangers)} never sent {strangers[:5]}, "
        f"{len(repeated)} consumed again {repeated[:5]}"
    )
    for message in received:
        assert content(message) == by_body[message["body"]].as_received


def assert_places_unique(received: Report) -> None:
    """No two messages share a queue offset, and each queue's offsets are 0, 1, 2 … without a hole."""
    offsets: dict[int, list[int]] = defaultdict(list)
    for message in received:
        offsets[message["queue"]].append(message["offset"])
    for queue, seen in offsets.items():
        assert sorted(seen) == list(range(len(seen))), f"queue {queue} holds {sorted(seen)[:20]} …"


def assert_found_where_stored(sent: Report, received: Report) -> None:
    """Each acknowledged message lies at the queue and offset the acknowledgement named."""
    places = {(message["queue"], message["offset"]): message["body"] for message in received}
    for report in sent:
        if "queue" in report:
            body = Sample(report["kind"], report["number"]).body
            assert places.get((report["queue"], report["offset"])) == body, report


def assert_shards_in_order(received: Report) -> None:
    """The ordered messages of one shard lie in one queue, in the order they were sent."""
    shards: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for message in received:
        if message["body"].startswith("ordered-"):
            number = int(message["number"])
            place = (message["queue"], message["offset"], number)
            shards[Sample("ordered", number).shard].append(place)
    assert shards, "no ordered message was consumed"
    for shard, places in shards.items():
        places.sort()
        assert len({queue for queue, _, _ in places}) == 1, f"{shard} is spread over several queues"
        numbers = [number for _, _, number in places]
        assert numbers == sorted(numbers), f"{shard} lies out of order: {numbers[:20]}"


def assert_consumed_in_queue_order(received: Report) -> None:
    """The consumer was called in the order of offsets, queue by queue (orderly consumers promise it)."""
    last: dict[int, int] = {}
    for message in received:
        queue, offset = message["queue"], message["offset"]
        assert offset > last.get(queue, -1), f"queue {queue}: {offset} came after {last[queue]}"
        last[queue] = offset
