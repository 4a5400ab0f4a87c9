"""How queues are shared, as AllocateMessageQueueAveragely and ...ByCircle do it."""

from hypothesis import given
from hypothesis import strategies as st

from remoting.allocation import averagely, by_circle, in_java_order

CLIENTS = ["c0", "c1", "c2"]


def test_averagely_gives_the_remainder_to_the_first_clients() -> None:
    assert [averagely(client, range(8), CLIENTS) for client in CLIENTS] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert [averagely(client, range(2), CLIENTS) for client in CLIENTS] == [[0], [1], []]
    assert averagely("unknown", range(8), CLIENTS) == []


def test_by_circle_gives_every_nth_queue() -> None:
    assert [by_circle(client, range(8), CLIENTS) for client in CLIENTS] == [[0, 3, 6], [1, 4, 7], [2, 5]]
    assert by_circle("unknown", range(8), CLIENTS) == []


@given(st.integers(0, 50), st.integers(1, 20))
def test_each_queue_has_one_owner(queues: int, clients: int) -> None:
    names = [f"c{number:02}" for number in range(clients)]
    for strategy in (averagely, by_circle):
        shares = [strategy(name, range(queues), names) for name in names]
        assert sorted(queue for share in shares for queue in share) == list(range(queues))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_java_compares_utf_16_units() -> None:
    assert "\ufffd" < "\U0001f600"
    assert in_java_order(["\ufffd", "\U0001f600", "b", "B", "a10", "a9"]) == [
        *("B", "a10", "a9", "b", "\U0001f600", "\ufffd"),
    ]
