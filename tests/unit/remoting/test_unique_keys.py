"""Ids of messages: unlike each other, and with the time that RocketMQ's tools read in them."""

import calendar

import pytest

from remoting.unique_keys import UniqueKeys


def unix_ms(*date: int) -> int:
    return calendar.timegm((*date, *(0,) * (9 - len(date)))) * 1000


def test_ids_differ_and_have_the_clients_form() -> None:
    keys = UniqueKeys(bytes(range(10)), lambda: 1_700_000_000_000)
    made = [keys.next() for _ in range(1000)]
    assert len(set(made)) == 1000
    assert made[0].startswith("00010203040506070809")
    assert {len(key) for key in made} == {32}


@pytest.mark.parametrize(
    ("now", "since"),
    [
        ((2026, 11, 1), 0),
        ((2026, 11, 30, 23, 59, 59), 30 * 86_400_000 - 1_000),
        ((2026, 12, 31, 1), (30 * 24 + 1) * 3_600_000),
        ((2028, 2, 29), 28 * 86_400_000),
    ],
)
def test_an_id_has_the_time_since_its_month_began(now: tuple[int, ...], since: int) -> None:
    times = iter([unix_ms(2026, 1, 5), unix_ms(*now)])
    keys = UniqueKeys(bytes(10), lambda: next(times))
    keys.next()
    assert int(keys.next()[20:28], 16) == since
