"""The storage damage table of docs/crash_safety.md, made of the very rows that the tests run.

`python -m tests.support.pages` writes it into the page.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.unit.commitlog import test_damage_table, test_queue_damage

ROOT = Path(__file__).resolve().parents[3]
TITLES = ("file", "what happened to it", "what the next start, or the running node, makes of it", "test")


@dataclass(frozen=True, slots=True)
class PageRow:
    """A row whose damage a test does in its own way."""

    file: str
    damage: str
    outcome: str
    tests: tuple[str, ...]
    """Pytest node ids below `tests/`, without parameters."""


STORE = "unit/commitlog/test_disk_errors.py::"
IMPAIRED = "unit/dledger/test_impairment.py::"
NOT_VOTING = "impaired: it follows and stores, but has no vote until it is healed"
OTHER_ROWS = (
    PageRow(
        "`currterm` (term and vote)",
        "missing beside a log, cut, any bit wrong, or older than the log",
        f"{NOT_VOTING}; the damaged file is kept aside. A lone node refuses a damaged one",
        (
            IMPAIRED + "test_vote_file_damaged_or_missing_beside_a_log",
            IMPAIRED + "test_vote_file_older_than_the_log_is_not_believed",
            "unit/dledger/test_hard_state.py::test_load_refuses_every_cut_of_the_file",
            "unit/dledger/test_hard_state.py::test_load_refuses_every_flipped_bit",
            IMPAIRED + "test_group_of_one_is_never_impaired",
        ),
    ),
    PageRow(
        "`impaired` (mark of a node that is not healed)",
        "any bit wrong",
        "the worst is assumed: log and vote may be lost",
        (IMPAIRED + "test_mark_with_any_byte_changed_says_that_all_may_be_lost",),
    ),
    PageRow(
        "`impaired`",
        "missing",
        "not noticed, the node counts as sound: it takes a second damage before the first is healed",
        (IMPAIRED + "test_vote_without_a_mark_is_sound",),
    ),
    PageRow(
        "`recovery.log`, after `ledgermq recover decide`",
        "last line cut",
        "no program reads it; the next line begins on a line of its own",
        ("unit/broker/test_group_recovery.py::test_a_line_that_a_crash_cut_spoils_no_other",),
    ),
    PageRow(
        "`currterm`, data, index, `recovery.log`",
        "power fails at any operation of `ledgermq recover decide`",
        "the members of before, or the decision, with who decided",
        ("unit/broker/test_group_recovery.py::test_a_crash_leaves_the_old_members_or_the_decision",),
    ),
    PageRow(
        "all files",
        "missing: an empty disk",
        f"{NOT_VOTING}; the leader fills its log",
        (
            IMPAIRED + "test_empty_disk_of_a_group_is_marked_before_anything_is_written",
            "unit/dledger/test_server_promises.py::test_wiped_node_votes_only_when_vote_and_log_are_on_its_disk_again",
            "simulation/test_scenarios_replication.py::test_s7_wiped_follower_is_filled_by_an_idle_leader",
        ),
    ),
    PageRow(
        "`state/snapshot`",
        "missing, cut, any bit wrong, or ahead of the log",
        "passed over: the state is read from the log again",
        (
            "unit/broker/test_state_files.py::test_a_snapshot_cut_or_changed_at_any_byte_is_refused",
            "unit/broker/test_state.py::test_a_damaged_snapshot_is_passed_over_for_the_log",
            "unit/broker/test_state.py::test_every_change_is_rebuilt_alike_on_another_node",
            "unit/broker/test_state_files.py::test_a_snapshot_ahead_of_its_log_is_not_used_when_the_log_has_grown",
        ),
    ),
    PageRow(
        "data, at a start",
        "a sector that cannot be read",
        "refused; a member of a group cuts the log there and is healed",
        (
            "unit/commitlog/test_unreadable_start.py::test_member_is_told_before_anything_changes_and_starts_with_what_is_before",
            "unit/commitlog/test_unreadable_start.py::test_lone_node_does_not_start_and_leaves_all_as_it_is",
        ),
    ),
    PageRow(
        "index, at a start",
        "a sector that cannot be read",
        "written again",
        ("unit/commitlog/test_unreadable_start.py::test_unreadable_index_is_written_again_and_nothing_lost",),
    ),
    PageRow(
        "`currterm`, `impaired`, the small files of the log and of the queues, consume queues, at a start",
        "a sector that cannot be read",
        "as if damaged",
        (
            "unit/dledger/test_impairment.py::test_file_that_cannot_be_read_counts_as_damaged",
            "unit/commitlog/test_unreadable_start.py::test_small_file_that_cannot_be_read_counts_as_damaged",
            "unit/commitlog/test_queue_damage.py::test_unreadable_sector_at_a_start_has_the_queues_built_again",
        ),
    ),
    PageRow(
        "data, of a running node",
        "any bit of an entry, a hole, or a sector that cannot be read",
        "found by the reader or the scrubber, taken from a peer, written in place; the node goes on",
        (
            "unit/commitlog/test_scrubber.py::test_every_flip_is_found_and_mended",
            "unit/commitlog/test_scrubber.py::test_hole_over_many_entries_is_found_and_mended",
            "unit/commitlog/test_scrubber.py::test_unreadable_sector_is_damage_and_heals_when_written",
            "unit/commitlog/test_cold_reads.py::test_flip_in_an_entry_is_damage_of_that_entry_alone",
            "unit/dledger/test_healer.py::test_damage_that_nobody_reads_is_found_by_the_scrubber",
        ),
    ),
    PageRow(
        "index, of a running node",
        "any bit of a unit",
        "wrong bytes are never served; the scrubber writes the unit again",
        (
            "unit/commitlog/test_cold_reads.py::test_flip_in_an_index_unit_never_gives_wrong_bytes",
            "unit/commitlog/test_scrubber.py::test_damaged_index_unit_is_written_again_from_the_entries",
        ),
    ),
    PageRow(
        "plain log (no group)",
        "torn tail at any byte",
        "cut there",
        ("unit/commitlog/test_commit_log.py::test_torn_tail_is_cut_and_written_over",),
    ),
    PageRow(
        "plain log (no group)",
        "damaged below its checkpoint, far from its end, or files missing",
        "refused",
        (
            "unit/commitlog/test_commit_log.py::test_damage_below_the_checkpoint_is_corrupt",
            "unit/commitlog/test_commit_log.py::test_damage_farther_back_than_anything_unsynced_is_corrupt",
            "unit/commitlog/test_commit_log.py::test_missing_files_are_corrupt",
        ),
    ),
    PageRow(
        "any file of the log",
        "disk full, or an error, at each write, each sync, each change of a name",
        "the store stops and touches no file again; the next start has what was promised",
        (STORE + "test_error_at_any_operation_stops_the_store_and_loses_nothing_promised",),
    ),
    PageRow(
        "data",
        "disk full while blocks are reserved",
        "reported before a byte is written",
        (STORE + "test_full_disk_while_reserving_is_told_before_a_byte_is_written",),
    ),
    PageRow(
        "data",
        "failed sync, though the next one would succeed",
        "not tried again, nothing acknowledged; the next start writes again what only the page cache has",
        (
            STORE + "test_s4_failed_fsync_is_not_tried_again_and_nothing_is_acknowledged_after_it",
            STORE + "test_s4_a_promise_never_rests_on_pages_that_a_failed_sync_lost",
            "unit/commitlog/test_failed_sync.py::test_what_a_failed_sync_left_in_the_page_cache_is_written_again",
            "unit/dledger/test_server_promises.py::test_failed_sync_stops_the_node_though_the_next_would_succeed",
        ),
    ),
    PageRow(
        "consume queues",
        "disk full, or an error, at each write, each sync, each change of a name",
        "the start or the flush of the queues reports it; the next start has every message in them",
        (
            "unit/commitlog/test_queue_damage.py::"
            "test_error_at_any_operation_of_the_queues_is_told_and_loses_nothing",
        ),
    ),
    PageRow(
        "`currterm`, `impaired`, `state/snapshot`",
        "disk full, or an error, at each write, each sync, each change of a name",
        "reported, and the old content or the new is found; a vote that was not saved is not answered",
        (
            "unit/test_replaced_files.py::test_error_at_any_operation_is_told_and_leaves_a_whole_file",
            "unit/dledger/test_server_promises.py::test_vote_that_cannot_be_saved_is_not_answered",
        ),
    ),
    PageRow(
        "all files of the log",
        "power fails at any operation, recovery and cutting included",
        "what was synced is there; of the rest a first part",
        (
            "unit/commitlog/test_entry_recovery.py::test_power_failure_at_any_moment_loses_only_what_was_not_synced",
            "simulation/test_disk.py::test_seeds_hold_on_the_real_store",
            "simulation/test_disk.py::test_power_fails_while_entries_are_cut_off",
        ),
    ),
    PageRow(
        "log, vote or all files of a minority",
        "damaged or lost while the others were down or behind",
        "a damaged node is never elected with a hole, and votes for no node that has one",
        (
            "simulation/test_scenarios_damage.py::test_damaged_node_is_never_elected_with_a_hole",
            "simulation/test_simulation.py::test_base_seeds_hold_while_disks_are_damaged",
        ),
    ),
    PageRow(
        "each kind of file of a real process",
        "a bit flipped, cut, deleted",
        "healed without an operator; nothing acknowledged is lost",
        (
            "chaos/test_file_damage.py::test_log_vote_and_disk_of_each_node_in_turn",
            "chaos/test_file_damage.py::test_every_kind_of_file",
        ),
    ),
)


def damage_rows() -> Iterator[tuple[str, ...]]:
    """The cells of each row."""
    for row in test_damage_table.ROWS:
        yield row.file, row.damage, row.outcome.value, "`unit/commitlog/test_damage_table.py`"
    for file, damage, outcome, _ in test_queue_damage.ROWS:
        yield file, damage, outcome.value, "`unit/commitlog/test_queue_damage.py`"
    for other in OTHER_ROWS:
        yield other.file, other.damage, other.outcome, "<br>".join(f"`{test}`" for test in other.tests)
