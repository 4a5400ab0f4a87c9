"""The table of open transactions: what it says, and what it keeps in memory for it."""

import random

import pytest

from broker.transactions.window import CHECKS_MAX, PIECE, Ending, TransactionWindow


def open_offsets(window: TransactionWindow) -> list[int]:
    return [offset for offset, _ in window.open_halves()]


def test_a_half_message_is_open_until_it_ends_and_ends_once() -> None:
    window = TransactionWindow()
    window.extend(3)
    assert window.finish(1, Ending.COMMIT)
    assert not window.finish(1, Ending.ROLLBACK)
    assert [window.ending(offset) for offset in range(-1, 4)] == [None, None, Ending.COMMIT, None, None]
    assert [window.is_open(offset) for offset in range(-1, 4)] == [False, True, False, True, False]
    assert (window.begin, window.end, window.open_count) == (0, 3, 2)


def test_what_is_behind_the_end_cannot_end() -> None:
    window = TransactionWindow()
    window.extend(3)
    assert not window.finish(3, Ending.COMMIT)
    window.extend(4)
    assert window.is_open(3)


def test_a_piece_goes_when_all_of_it_have_ended_and_how_is_forgotten() -> None:
    window = TransactionWindow()
    window.extend(3 * PIECE)
    for offset in range(PIECE, 2 * PIECE):
        window.finish(offset, Ending.COMMIT)
    assert window.held_bytes == 2 * PIECE
    assert window.ending(PIECE) is Ending.UNKNOWN
    assert not window.finish(PIECE, Ending.COMMIT)
    assert window.open_count == 2 * PIECE


def test_an_unfinished_piece_stays_for_the_half_messages_to_come() -> None:
    window = TransactionWindow()
    window.extend(PIECE - 1)
    for offset in range(PIECE - 1):
        window.finish(offset, Ending.ROLLBACK)
    assert (window.begin, window.open_count, window.held_bytes) == (PIECE - 1, 0, PIECE)
    window.extend(PIECE)
    assert open_offsets(window) == [PIECE - 1]


def test_checks_are_counted_for_open_ones_up_to_a_bound() -> None:
    window = TransactionWindow()
    window.extend(2)
    window.finish(0, Ending.COMMIT)
    for _ in range(CHECKS_MAX + 5):
        window.check(0)
        window.check(1)
    assert list(window.open_halves()) == [(1, CHECKS_MAX)]
    assert window.ending(0) is Ending.COMMIT


def test_the_open_ones_can_be_walked_while_they_end() -> None:
    window = TransactionWindow()
    window.extend(2 * PIECE + 3)
    seen = []
    for offset, _ in window.open_halves():
        seen.append(offset)
        for ended in range(offset, min(offset + 700, window.end)):
            window.finish(ended, Ending.COMMIT)
    assert seen == [0, 700, 1400]
    assert window.open_count == 0


@pytest.mark.parametrize("begin", [0, 1, PIECE - 1, PIECE, PIECE + 1])
def test_a_table_that_begins_late_knows_that_all_before_has_ended(begin: int) -> None:
    window = TransactionWindow(begin)
    window.extend(begin + 2)
    assert open_offsets(window) == [begin, begin + 1]
    assert all(window.ending(offset) is Ending.UNKNOWN for offset in range(begin))


def test_a_restored_table_is_the_one_that_was_written_down() -> None:
    rng = random.Random(7)
    for _ in range(50):
        window = TransactionWindow(rng.randrange(3 * PIECE))
        window.extend(window.end + rng.randrange(3 * PIECE))
        for offset in rng.sample(range(window.end + 1), window.end * rng.randint(0, 100) // 100):
            window.finish(offset, Ending.COMMIT)
        for offset, _ in window.open_halves():
            for _ in range(rng.randint(0, 2)):
                window.check(offset)
        again = TransactionWindow.restored(window.end, window.rows())
        assert list(again.open_halves()) == list(window.open_halves())
        assert (again.open_count, again.begin, again.end) == (window.open_count, window.begin, window.end)
        for both in (window, again):
            both.extend(both.end + 5)
            both.finish(both.end - 3, Ending.COMMIT)
        assert list(again.open_halves()) == list(window.open_halves())
        for offset in open_offsets(again):
            again.finish(offset, Ending.COMMIT)
        assert again.held_bytes <= PIECE


def row(number: int, states: int = PIECE) -> bytes:
    return number.to_bytes(8, "big") + bytes(states)


@pytest.mark.parametrize(
    ("end", "rows"),
    [
        (5, []),
        (5, [row(1)]),
        (5, [row(0, PIECE - 1)]),
        (5, [b""]),
        (PIECE, [row(1)]),
        (3 * PIECE, [row(1), row(1)]),
        (3 * PIECE, [row(2), row(1)]),
        (3 * PIECE + 1, [row(2)]),
        (0, [row(0)]),
    ],
)
def test_rows_that_cannot_be_are_refused(end: int, rows: list[bytes]) -> None:
    with pytest.raises(ValueError, match=r"row"):
        TransactionWindow.restored(end, rows)


def test_how_a_transaction_ended_is_restored_too() -> None:
    window = TransactionWindow()
    window.extend(PIECE + 2)
    window.finish(3, Ending.ROLLBACK)
    again = TransactionWindow.restored(window.end, window.rows())
    assert again.ending(3) is Ending.ROLLBACK
