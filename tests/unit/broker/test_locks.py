from broker.locks import LockTable

QUEUE = ("T", 0)


def test_a_lock_is_held_against_other_clients_until_it_is_not_renewed() -> None:
    table = LockTable(expiry_ms=60_000)
    assert table.lock("G", QUEUE, "a", 0)
    assert not table.lock("G", QUEUE, "b", 60_000)
    assert table.holder("G", QUEUE, 60_000) == "a"
    assert table.lock("G", QUEUE, "b", 60_001)
    assert table.holder("G", QUEUE, 60_001) == "b"


def test_renewing_moves_the_expiry() -> None:
    table = LockTable(expiry_ms=60_000)
    table.lock("G", QUEUE, "a", 0)
    assert table.lock("G", QUEUE, "a", 50_000)
    assert not table.lock("G", QUEUE, "b", 110_000)


def test_groups_and_queues_are_apart() -> None:
    table = LockTable()
    assert table.lock("G", QUEUE, "a", 0)
    assert table.lock("H", QUEUE, "b", 0)
    assert table.lock("G", ("T", 1), "b", 0)


def test_only_the_holder_unlocks() -> None:
    table = LockTable()
    table.lock("G", QUEUE, "a", 0)
    table.unlock("G", QUEUE, "b")
    assert table.holder("G", QUEUE, 0) == "a"
    table.unlock("G", QUEUE, "a")
    assert table.holder("G", QUEUE, 0) is None
    assert table.lock("G", QUEUE, "b", 0)


def test_a_full_table_grants_no_more_until_old_locks_expire() -> None:
    table = LockTable(expiry_ms=60_000, locks_max=2)
    assert table.lock("G", ("T", 0), "a", 0)
    assert table.lock("G", ("T", 1), "a", 50_000)
    assert not table.lock("G", ("T", 2), "a", 60_000)
    assert table.lock("G", ("T", 2), "a", 60_001)
    assert len(table) == 2


def test_clear_frees_every_queue() -> None:
    table = LockTable()
    table.lock("G", QUEUE, "a", 0)
    table.clear()
    assert table.lock("G", QUEUE, "b", 1)
