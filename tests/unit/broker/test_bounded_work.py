"""Requests whose work is bounded before it begins. How long they take is measured by tests/fuzz/held."""

from __future__ import annotations

import orjson
import pytest

from broker.consume.heartbeats import (
    EXPRESSIONS_CHARS_MAX,
    SUBSCRIPTIONS_MAX,
    HeartbeatError,
    parse_heartbeat,
)
from broker.consume.queue_reader import WORK_US_MAX, PropertyBatch
from broker.send.admission import BATCH_MESSAGES_MAX, BatchBodyError, split_batch
from broker.sql92.compiler import LISTED_PER_TOKEN, TOKENS_MAX
from broker.sql92.filters import PLAIN_LOOKUPS_MAX, SqlFilters
from broker.state.access import ENTRIES_MAX, AccessError, AccessList
from broker.state.topics import QUEUE_NUMS_ASKED_MAX, asked_queues_error
from commitlog.record import Message
from remoting.tag_filters import FilterError
from tests.fuzz.held.samples import sub_message
from tests.support.fake_log import FakeLog, as_message_log
from tests.unit.broker.consume_bench import ignore

FILTERS = SqlFilters()


def heartbeat(*expressions: str) -> bytes:
    rows = [{"topic": f"t{at}", "subString": text} for at, text in enumerate(expressions)]
    return orjson.dumps(
        {"clientID": "c", "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": rows}]}
    )


def test_subscriptions_of_one_heartbeat_are_bounded() -> None:
    (consumer,) = parse_heartbeat(heartbeat(*["*"] * SUBSCRIPTIONS_MAX)).consumers
    assert len(consumer.subscriptions or ()) == SUBSCRIPTIONS_MAX
    with pytest.raises(HeartbeatError, match="subscription"):
        parse_heartbeat(heartbeat(*["*"] * (SUBSCRIPTIONS_MAX + 1)))
    half = "a" * (EXPRESSIONS_CHARS_MAX // 2)
    assert parse_heartbeat(heartbeat(half, half)).consumers
    with pytest.raises(HeartbeatError, match="characters"):
        parse_heartbeat(heartbeat(half, half, "a"))


def test_queues_that_a_request_may_ask_for() -> None:
    assert asked_queues_error(QUEUE_NUMS_ASKED_MAX, 1) is None
    assert "4096 are possible" in (asked_queues_error(1, QUEUE_NUMS_ASKED_MAX + 1) or "")


def test_a_batch_has_a_bounded_number_of_messages() -> None:
    assert len(split_batch(sub_message() * BATCH_MESSAGES_MAX, BATCH_MESSAGES_MAX)) == BATCH_MESSAGES_MAX
    with pytest.raises(BatchBodyError, match="more than"):
        split_batch(sub_message() * (BATCH_MESSAGES_MAX + 1), BATCH_MESSAGES_MAX)


def test_rights_are_counted_before_they_are_read() -> None:
    """Entries of which none could be read."""
    policies: list[dict[str, object]] = [{"entries": [{}] * (ENTRIES_MAX // 2)}] * 3
    with pytest.raises(AccessError, match="at most"):
        AccessList.from_json({"subject": "User:u", "policies": policies})


def test_texts_of_a_list_count_less_than_other_words() -> None:
    texts = (TOKENS_MAX * LISTED_PER_TOKEN) // 2 - 20
    FILTERS.filter_for("SQL92", f"a in ({','.join(['1'.join(chr(39) * 2)] * texts)})")
    with pytest.raises(FilterError, match="words and signs"):
        FILTERS.filter_for("SQL92", "a = 1" + " or a = 1" * (texts // 4))


@pytest.mark.parametrize("lookups", [1, PLAIN_LOOKUPS_MAX + 1])
def test_one_or_many_looks_at_a_property_see_the_same(lookups: int) -> None:
    wanted = FILTERS.filter_for("SQL92", " and ".join(["a = 5"] * lookups))
    assert wanted.lookups == lookups
    assert wanted.wants(b"a\x014\x02b\x015\x02a\x015\x02a\x01\x02\x01x\x02")
    assert not wanted.wants(b"a\x015\x02a\x014\x02")
    assert not wanted.wants(b"xa\x015\x02")
    assert not wanted.wants(b"")


def test_a_slow_filter_looks_at_fewer_messages_in_one_answer() -> None:
    log = FakeLog(auto_commit=False)
    log.put([Message("t", 0, b"", b"a\x01\x02" * 2_000) for _ in range(100)], ignore)
    log.commit()
    queue = log.queues.get("t", 0)
    assert queue is not None
    examined = []
    for parts in (1, 200):
        wanted = FILTERS.filter_for("SQL92", " or ".join(["a = 5"] * parts))
        batch = PropertyBatch(as_message_log(log), wanted, 32, 1_000_000, 10_000_000)
        batch.add_from(queue, 0, 100)
        examined.append(batch.examined)
        assert batch.is_full
        assert wanted.work_us(b"a\x01\x02" * 2_000) * batch.examined <= 2 * WORK_US_MAX
    assert 100 > examined[0] > 0
    assert 100 > examined[1] > 0
