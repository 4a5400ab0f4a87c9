from broker.consume.queue_locks import Claim, LockTable

QUEUE = ("T", 0)


def test_a_lock_is_held_against_other_clients_until_it_is_not_renewed() -> None:
    table = LockTable(expiry_ms=60_000)
    assert table.claim("G", QUEUE, "a", 0) is Claim.NEW
    assert table.claim("G", QUEUE, "b", 60_000) is Claim.REFUSED
    assert table.holder("G", QUEUE, 60_000) == "a"
    assert table.claim("G", QUEUE, "b", 60_001) is Claim.NEW
    assert table.holder("G", QUEUE, 60_001) == "b"


def test_a_lock_is_new_until_the_log_says_it() -> None:
    table = LockTable()
    assert table.claim("G", QUEUE, "a", 0) is Claim.NEW
    assert table.claim("G", QUEUE, "a", 1) is Claim.NEW
    assert table.logged("G", QUEUE, "a")
    assert table.claim("G", QUEUE, "a", 2) is Claim.HELD


def test_what_the_log_says_too_late_is_not_held() -> None:
    table = LockTable(expiry_ms=10)
    table.claim("G", QUEUE, "a", 0)
    table.claim("G", QUEUE, "b", 11)
    assert not table.logged("G", QUEUE, "a")
    assert table.claim("G", QUEUE, "b", 12) is Claim.NEW
    assert table.logged("G", QUEUE, "b")
    assert not table.logged("G", ("T", 1), "b")


def test_a_lock_that_was_taken_over_is_new_again() -> None:
    table = LockTable(expiry_ms=10)
    table.claim("G", QUEUE, "a", 0)
    table.logged("G", QUEUE, "a")
    assert table.claim("G", QUEUE, "b", 11) is Claim.NEW
    assert table.claim("G", QUEUE, "a", 12) is Claim.REFUSED


def test_renewing_moves_the_expiry() -> None:
    table = LockTable(expiry_ms=60_000)
    table.claim("G", QUEUE, "a", 0)
    table.claim("G", QUEUE, "a", 50_000)
    assert table.claim("G", QUEUE, "b", 110_000) is Claim.REFUSED


def test_groups_and_queues_are_apart() -> None:
    table = LockTable()
    assert table.claim("G", QUEUE, "a", 0) is Claim.NEW
    assert table.claim("H", QUEUE, "b", 0) is Claim.NEW
    assert table.claim("G", ("T", 1), "b", 0) is Claim.NEW


def test_only_the_holder_frees() -> None:
    table = LockTable()
    table.claim("G", QUEUE, "a", 0)
    assert not table.release("G", QUEUE, "b")
    assert table.holder("G", QUEUE, 0) == "a"
    assert table.release("G", QUEUE, "a")
    assert not table.release("G", QUEUE, "a")
    assert table.holder("G", QUEUE, 0) is None


def test_a_full_table_grants_no_more_until_old_locks_expire() -> None:
    table = LockTable(expiry_ms=60_000, locks_max=2)
    table.claim("G", ("T", 0), "a", 0)
    table.claim("G", ("T", 1), "a", 50_000)
    assert table.claim("G", ("T", 2), "a", 60_001) is Claim.REFUSED
    assert table.expire(60_001) == [(("G", ("T", 0)), "a")]
    assert table.claim("G", ("T", 2), "a", 60_001) is Claim.NEW
    assert len(table) == 2


def test_a_new_leader_takes_every_lock_for_renewed_now() -> None:
    table = LockTable(expiry_ms=60_000)
    table.claim("G", ("T", 7), "a", 0)
    table.load([(("G", QUEUE), "a")], 1_000)
    assert table.claim("G", QUEUE, "b", 61_000) is Claim.REFUSED
    assert table.claim("G", QUEUE, "b", 61_001) is Claim.NEW
    assert table.claim("G", ("T", 7), "b", 1_000) is Claim.NEW


def test_who_renews_at_a_new_leader_needs_no_record() -> None:
    table = LockTable()
    table.load([(("G", QUEUE), "a")], 1_000)
    assert table.claim("G", QUEUE, "a", 1_001) is Claim.HELD


def test_clear_forgets_every_lock() -> None:
    table = LockTable()
    table.claim("G", QUEUE, "a", 0)
    table.clear()
    assert len(table) == 0
