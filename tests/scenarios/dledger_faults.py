"""What DLedger and the brokers on it did wrong: lost messages, stuck followers, full disks."""

from __future__ import annotations

from tests.scenarios.scenario import (
    CHAOS_DISKS,
    CHAOS_PROCESSES,
    CONSUME_QUEUES,
    DAMAGE_TABLE,
    DELAY,
    DISK_ERRORS,
    DISPATCHER,
    DLEDGER_LOG,
    ELECTIONS,
    ENTRY,
    GROUP_FAULTS,
    HANDLER,
    HARD_STATE,
    HOSTILE_CLIENTS,
    LONG_CHAOS,
    NODE,
    NODES,
    POWER_LOSS,
    PROMISES,
    PULL,
    QUERIES,
    QUEUE_DAMAGE,
    REPLICATION,
    RETENTION,
    RETENTION_OF_NODES,
    ROUTES,
    SCRUBBER,
    SEEDS,
    SERVER_FAULTS,
    STATE,
    STATE_FILES,
    TIMER_FAILOVER,
    UNSYNCED,
    VOTES,
    Scenario,
    golden,
)

SAFETY = (
    Scenario(
        "acknowledged-in-memory",
        "A follower acknowledges what only its page cache holds, and the flush mode is ignored",
        "with `persisted` durability nothing is acknowledged that a majority's power loss can take",
        ("DLedger's handleDoAppend and DLedgerCommitLog",),
        (
            *HANDLER("append_is_promised_only_after_the_disk"),
            *PROMISES("acknowledged_entry_outlives_a_power_failure"),
            *ELECTIONS("s2_power_loss_right_after_the_acknowledgement_loses_nothing"),
        ),
    ),
    Scenario(
        "old-term-counted",
        "An entry of an earlier term is committed by counting its copies",
        "a leader counts entries of its own term only",
        ("DLedger's MemberState.leaderUpdateCommittedIndex", "Raft, section 5.4.2"),
        (
            *ELECTIONS("s1_entry_of_an_old_term_on_a_majority_is_not_committed_and_may_be_replaced"),
            *golden("commit_old_term_not_counted", "commit_old_term_overwritten"),
        ),
    ),
    Scenario(
        "dledger#316",
        "The commit index is beyond the end after a truncation, and the node that is elected waits for ever",
        "commit index ≤ end, always, and a new leader accepts writes within a bound",
        ("dledger#316", "DLedgerRoleChangeHandler"),
        (
            *REPLICATION(
                "s5_truncation_below_the_commit_index_is_refused",
                "s5_node_whose_disk_ends_before_its_checkpoint_starts_and_is_filled",
            ),
            *golden("commit_clamped_to_what_follower_has"),
            *NODE("commit_index_of_the_checkpoint_is_fitted_to_the_log"),
        ),
    ),
    Scenario(
        "rocketmq#2178",
        "A node whose log was behind is elected",
        "no node leads without every committed entry",
        ("rocketmq#2178", "dledger#52"),
        (*golden("vote_refused_for_outdated_log"), *VOTES("can_grant_vote"), *SEEDS("base_seeds_hold")),
    ),
    Scenario(
        "dledger#278",
        "A follower commits up to the leader's commit index without checking its own log",
        "it commits only what was compared with the leader's log, and never goes back",
        ("dledger#278",),
        (
            *golden("commit_not_past_what_is_compared", "commit_never_goes_back"),
            *HANDLER("commit_may_go_as_far_as_compare_matched"),
        ),
    ),
    Scenario(
        "dledger#268",
        "A snapshot is made with the wrong index",
        "a snapshot says what it holds, is checked when it is read, and gives the state that the log gives",
        ("dledger#268", "pull request dledger#269"),
        (
            *STATE(
                "a_snapshot_and_the_rest_of_the_log_give_the_same_state",
                "records_the_snapshot_holds_are_not_applied_again",
            ),
            *STATE_FILES(
                "a_snapshot_cut_or_changed_at_any_byte_is_refused",
                "a_snapshot_ahead_of_its_log_is_not_used_when_the_log_has_grown",
            ),
            *RETENTION_OF_NODES("checkpoint_larger_than_a_data_file_brings_a_node_back"),
        ),
    ),
    Scenario(
        "vote-file-unsynced",
        "Term and vote are deleted, renamed and never synced: after a crash there may be no vote",
        "one vote in a term, through a crash at any moment",
        ("DLedger's MemberState and IOUtils.string2File",),
        (
            *HARD_STATE("vote_outlives_a_power_failure_at_any_moment", "load_refuses_every_cut_of_the_file"),
            *ELECTIONS("s3_crash_between_vote_and_vote_file"),
            *PROMISES("node_that_may_have_lost_its_vote_is_marked_until_it_is_healed"),
        ),
    ),
    Scenario(
        "failed-sync-ignored",
        "An error of fsync is logged, and the flushed position moves on",
        "the node stops at once, and the next start believes nothing that only memory held",
        ("DLedger's DefaultMmapFile.flush",),
        (
            *PROMISES(
                "failed_sync_stops_the_node_though_the_next_would_succeed",
                "failed_write_stops_the_node",
            ),
            *DISK_ERRORS("s4_failed_fsync_is_not_tried_again_and_nothing_is_acknowledged_after_it"),
            *UNSYNCED("what_a_failed_sync_left_in_the_page_cache_is_written_again"),
            *CHAOS_DISKS("node_whose_write_fails_stops_and_loses_nothing"),
        ),
    ),
    Scenario(
        "crc-never-checked",
        "The format has checksums that are neither computed nor checked",
        "every flipped bit is found: at a start, in a push, in a read, by the scrubber",
        ("DLedgerEntryCoder and DLedgerMmapFileStore",),
        (
            *ENTRY("verify_finds_every_flipped_bit"),
            *PROMISES("damaged_push_is_dropped_and_the_whole_one_taken"),
            *DAMAGE_TABLE("row_of_the_damage_table"),
            *SCRUBBER("every_flip_is_found_and_mended"),
            "tests/unit/commitlog/test_cold_reads.py::test_bodies_are_read_checked",
        ),
    ),
    Scenario(
        "rocketmq#7477",
        "After a restart of all nodes messages are not found by their ids",
        "every acknowledged message is found by its id on every node",
        ("rocketmq#7477",),
        (
            *NODES("rmq7477_every_acknowledged_message_is_found_by_its_id_after_a_full_restart"),
            *QUERIES("what_was_acknowledged_is_found_by_key_on_every_node_whoever_died"),
        ),
    ),
    Scenario(
        "rocketmq#7355",
        "“Logic queue order maybe wrong” until an operator deletes all consume queues",
        "queues are checked against the log and built again by the node itself",
        ("rocketmq#7355", "rocketmq#467"),
        (
            *QUEUE_DAMAGE(
                "row_of_the_queues_damage_table",
                "s20_kill_in_the_middle_of_writing_index_or_queues_boots_unaided",
            ),
            *CONSUME_QUEUES("queues_that_disagree_with_the_log_are_dropped"),
            *DLEDGER_LOG("queues_are_built_again_after_they_were_deleted"),
        ),
    ),
    Scenario(
        "rocketmq#7511",
        "Two ways into the log: a lock is too fine in one, and its fix misses the other",
        "one way into the log gives positions and queue offsets, for every kind of message",
        ("rocketmq#7511", "rocketmq#8762", "rocketmq#8763"),
        (
            *DLEDGER_LOG(
                "log_keeps_the_contract",
                "put_gives_positions_and_offsets_and_answers_at_the_commit",
            ),
            *POWER_LOSS("queues_hold_what_was_committed_whenever_the_power_fails"),
        ),
        ("light message queues (LMQ)",),
    ),
    Scenario(
        "rocketmq#5883",
        "Messages with a delay never come where DLedger keeps the log",
        "they come, also when the leader dies while they wait",
        ("rocketmq#5883",),
        (
            *NODES("rmq5883_delayed_messages_come_though_the_leader_dies_while_they_wait"),
            *DELAY("a_new_leader_goes_on_where_the_old_one_stopped"),
            *TIMER_FAILOVER("any_prefix_of_the_log_delivers_each_message_once"),
        ),
    ),
    Scenario(
        "rocketmq#3168",
        "A broker is shown as master and slave at once",
        "an address has one place in a route, and a message of an earlier term never replaces the leader's",
        ("rocketmq#3168",),
        (
            *ROUTES(
                "slave_that_becomes_master_appears_once",
                "leader_of_an_earlier_term_cannot_take_id_0_back",
            ),
            *NODES("rmq3168_no_route_shows_a_node_in_two_places"),
        ),
    ),
    Scenario(
        "rocketmq#3461",
        "“Cannot realize disaster recovery”",
        "clusters of real processes come back from mixed faults by themselves, with all they acknowledged",
        ("rocketmq#3461",),
        (
            *LONG_CHAOS("mixed_faults"),
            *CHAOS_PROCESSES("power_failures", "rolling_restart_and_planned_transfers"),
        ),
    ),
)

REPLICATION_AND_DISK = (
    Scenario(
        "dledger#87",
        "A new or empty node asks for ever for entries that the leader has removed",
        "it begins where the leader begins, after a few messages",
        ("rocketmq#1778", "dledger#87", "pull request dledger#50"),
        (
            *REPLICATION("s6_follower_down_longer_than_retention_begins_where_the_leader_begins"),
            *golden("reset_logs_do_not_meet"),
            *DISPATCHER("empty_peer_that_begins_inside_our_log_is_not_reset_again"),
            *RETENTION_OF_NODES("wiped_node_takes_the_state_from_the_log"),
        ),
    ),
    Scenario(
        "dledger#275",
        "A majority needs what the leader removed, and the cluster is out of service",
        "the followers' logs begin again at the leader's first entry, and the group accepts writes",
        ("dledger#275",),
        (
            *GROUP_FAULTS("dl275_group_is_available_when_the_majority_needs_what_the_leader_removed"),
            *RETENTION_OF_NODES("logs_lose_their_begin_under_faults"),
        ),
    ),
    Scenario(
        "dledger#61",
        "A wiped follower gets nothing before the next write",
        "an idle leader fills it at once",
        ("dledger#61",),
        (
            *REPLICATION(
                "s7_wiped_follower_is_filled_by_an_idle_leader",
                "follower_that_doubted_its_leader_commits_what_it_had_acknowledged",
            ),
            *golden("reset_wiped_follower_of_idle_leader"),
        ),
    ),
    Scenario(
        "dledger#325",
        "An isolated follower raises terms and cannot join again",
        "pre-vote keeps its term, and it follows again within a beat or two",
        ("dledger#325",),
        (
            *ELECTIONS("s8_isolated_follower_comes_back_without_disturbing"),
            *golden("prevote_cut_off_node_keeps_its_term"),
        ),
    ),
    Scenario(
        "dledger#282",
        "A stuck RPC thread stops the whole node",
        "no slow disk, slow peer or slow client keeps the others waiting",
        ("dledger#282", "dledger#283", "dledger#284"),
        (
            *golden("heartbeat_slow_disk_still_answers"),
            *SERVER_FAULTS(
                "stalled_disk_of_a_leader_bounds_what_it_takes", "answer_that_raises_harms_nobody_else"
            ),
            *PULL("very_many_pulls_that_one_message_wakes_do_not_keep_the_loop"),
            *HOSTILE_CLIENTS("endless_pulls_of_one_client_leave_room_for_others"),
            *CHAOS_PROCESSES("leaders_that_stand_still"),
            *CHAOS_DISKS("slow_disks"),
        ),
    ),
    Scenario(
        "dledger#320",
        "After a time-out overlapping batches are sent again, and comparison begins again",
        "a repeated push is acknowledged, not compared",
        ("dledger#320",),
        (
            *REPLICATION("s9_pushes_sent_again_after_lost_answers_are_harmless"),
            *golden("append_only_first_unacknowledged_again", "append_behind_by_a_longer_push"),
        ),
    ),
    Scenario(
        "dledger#309",
        "A follower's closures are never removed",
        "tables of waiting pushes and appends are bounded, and empty once all is over",
        ("pull request dledger#309",),
        (
            *GROUP_FAULTS("dl309_nothing_is_kept_of_pushes_and_appends_once_they_are_over"),
            *HANDLER("waiting_pushes_are_bounded_in_bytes"),
            *golden("append_waiting_map_full"),
        ),
    ),
    Scenario(
        "rocketmq#1324",
        "Expired files are not deleted, and options for paths are ignored",
        "what has expired is removed, index and queues with it",
        ("rocketmq#1324",),
        (
            *RETENTION(
                "what_is_old_goes_at_its_hour",
                "what_is_left_of_deleted_topics_goes",
            ),
            *RETENTION_OF_NODES("files_are_gone_from_the_disk"),
        ),
    ),
    Scenario(
        "rocketmq#441",
        "No retention of its own for a topic",
        "each topic keeps its messages for as long as it says",
        ("rocketmq#441", "rocketmq#2226", "rocketmq#3231", "rocketmq#3232", "rocketmq#8129"),
        (
            *RETENTION("topic_shows_its_messages_for_its_own_time"),
            *RETENTION_OF_NODES("topic_shows_its_messages_for_its_own_time_on_every_node"),
        ),
        ("keeping a topic's messages for longer than the log",),
    ),
    Scenario(
        "slowest-follower-ignored",
        "Files are removed by time and disk use, whatever the slowest follower still needs",
        "removal waits for slow followers up to a stated bound, and a follower beyond it begins again",
        ("DLedger's CleanSpaceService",),
        (
            *golden("reset_entry_removed_while_pushing"),
            *REPLICATION("retention_while_a_lower_index_is_compared_starts_the_comparison_anew"),
            *RETENTION("follower_is_not_waited_for_when_room_is_short_or_it_is_said"),
            *RETENTION_OF_NODES("leader_waits_for_a_follower_that_is_away_while_its_disk_has_room"),
        ),
    ),
)
