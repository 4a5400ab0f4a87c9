"""Health check: consumer groups and dead letters. Pure."""

from collections.abc import Iterator
from typing import Final

from admin_api.groups.schemas import GroupPresence
from admin_api.health_checks.facts import Facts, Finding, info, warning, words_of_ms

LAG_HIGH: Final = 100_000
GROWTH_MIN: Final = 10
DLQ_FRESH_MS: Final = 3_600_000
DLQ_OLD_MS: Final = 3 * 86_400_000


def check_consumers(facts: Facts) -> Iterator[Finding]:
    for group in facts.groups or ():
        lag = group.lag
        if group.is_system or not lag:
            continue
        if group.consume_enabled is False:
            yield warning(
                "consuming-disabled",
                group.group,
                f"{group.group} is not allowed to consume and is {lag} messages behind.",
                f"If that is over: `ledgermq group edit {group.group} --enable`.",
            )
        elif group.presence is GroupPresence.OFFLINE:
            yield warning(
                "consumer-dead",
                group.group,
                f"{group.group} is {lag} messages behind, and no consumer of it is connected.",
                f"Start its consumers. If it is not needed any more: `ledgermq group delete {group.group}`.",
            )
        elif group.presence is GroupPresence.ONLINE:
            yield from _slow(facts, group.group, lag)


def _slow(facts: Facts, group: str, lag: int) -> Iterator[Finding]:
    before = facts.lag_before.get(group)
    if before is not None and lag - before >= GROWTH_MIN:
        yield warning(
            "lag-growing",
            group,
            f"The lag of {group} grew from {before} to {lag} messages within {words_of_ms(facts.sample_ms)}.",
            "Its consumers are slower than the producers: add consumers (up to the number of queues), or see "
            f"what they wait for (`ledgermq group running {group}`).",
        )
    elif lag > LAG_HIGH:
        yield warning(
            "lag-high",
            group,
            f"{group} is {lag} messages behind, though its consumers are connected.",
            f"See whether it shrinks (`ledgermq watch`) and what they do (`ledgermq group running {group}`).",
        )


def check_dead_letters(facts: Facts) -> Iterator[Finding]:
    for dlq in facts.dlqs or ():
        if not dlq.count:
            continue
        look = (
            f"`ledgermq dlq show {dlq.group}` shows them, `ledgermq dlq resend {dlq.group}` sends them again."
        )
        newest_ms = None if dlq.newest_at_ms is None else facts.now_ms - dlq.newest_at_ms
        oldest_ms = None if dlq.oldest_at_ms is None else facts.now_ms - dlq.oldest_at_ms
        if newest_ms is not None and newest_ms <= DLQ_FRESH_MS:
            yield warning(
                "dlq-growing",
                dlq.group,
                f"{dlq.group} could not consume messages: {dlq.count} are in its dead letter queue, the last "
                f"came {words_of_ms(max(0, newest_ms))} ago.",
                f"Find out what its consumers fail at. {look}",
            )
        elif oldest_ms is not None and oldest_ms >= DLQ_OLD_MS:
            yield info(
                "dlq-old",
                dlq.group,
                f"{dlq.count} dead letters of {dlq.group} wait, the oldest for {words_of_ms(oldest_ms)}.",
                f"They go when retention takes them. {look}",
            )
