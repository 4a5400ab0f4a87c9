"""What the controller mode, RocketMQ's other way to elect a master, did wrong."""

from __future__ import annotations

from tests.scenarios.scenario import (
    CHAOS_NETWORK,
    DLEDGER_LOG,
    ELECTIONS,
    ENTRY_RECOVERY,
    ENTRY_STORE,
    EPOCHS,
    GROUP_LARGE_NUMBERS,
    LARGE_NUMBERS,
    NODES,
    POWER_LOSS,
    REGISTRATION,
    ROUTES,
    VOTES,
    Scenario,
    golden,
)

SUCCESSOR = (
    Scenario(
        "three-replicas",
        "A group needs three replicas, and a majority is the only rule of acknowledgement",
        "one, two and four nodes make a group as well, by the same rule",
        ("RocketMQ's docs/en/controller/design.md", "RIP-44"),
        golden("single_node_leads_and_commits", "quorum_two_nodes", "quorum_of_four"),
        ("a group of two that goes on alone", "witnesses without data"),
    ),
    Scenario(
        "rocketmq#7689",
        "Brokers that are restarted give queue offsets a second time, and messages are lost",
        "no two messages have one queue offset",
        ("rocketmq#7689",),
        (
            *NODES("s12_no_two_messages_share_a_queue_offset_after_all_nodes_died_at_once"),
            *DLEDGER_LOG("next_leader_goes_on_with_the_committed_offsets"),
        ),
    ),
    Scenario(
        "rocketmq#6662",
        "Two masters under a partition, and the wrong one says what is confirmed",
        "the old leader acknowledges nothing and steps down",
        ("rocketmq#6662",),
        (
            *ELECTIONS(
                "s13_leader_that_nobody_hears_is_replaced_and_steps_down",
                "s13_leader_that_hears_nobody_steps_down",
            ),
            *NODES("s13_clients_on_both_sides_of_a_cut_see_no_stale_offset"),
            *CHAOS_NETWORK("isolated_leader_is_deposed_and_comes_back"),
        ),
    ),
    Scenario(
        "rocketmq#6316",
        "A name server believes the master that registered last",
        "the higher term is the leader",
        ("rocketmq#6316",),
        (
            *ROUTES("leader_of_an_earlier_term_cannot_take_id_0_back"),
            *REGISTRATION("the_body_holds_topics_and_a_version_with_the_term"),
        ),
    ),
    Scenario(
        "rocketmq#8380",
        "Elections that are wrong, not needed, or never repeated",
        "an undisturbed leader stays, and a lost round is followed by another one soon",
        ("rocketmq#8380", "rocketmq#10875"),
        (
            *golden(
                "prevote_disconnect_of_one_link_is_harmless",
                "prevote_refused_by_lease",
                "vote_split_retries_soon",
            ),
            *ELECTIONS("node_told_of_lost_connections_by_mistake_still_wins_an_election"),
            *VOTES("retry_delay_doubles_up_to_an_election_timeout"),
        ),
    ),
    Scenario(
        "rocketmq#10578",
        "`(int)(long - long)` elects the broker with the lower offset",
        "offsets that differ by more than 2^31 are compared right",
        ("rocketmq#10578",),
        (
            *VOTES("can_grant_vote"),
            *GROUP_LARGE_NUMBERS("s14_group_replicates_elects_and_catches_up_across_the_boundary"),
            *LARGE_NUMBERS("s14_log_is_found_again"),
        ),
    ),
    Scenario(
        "rocketmq#9689",
        "A master does not find its epoch, or the epochs disagree with a log that was cut",
        "epochs follow every append, cut and reset, and are read from the log when their file is wrong",
        ("rocketmq#9689", "pull request rocketmq#9942"),
        (
            *ENTRY_STORE("truncate_drops_epochs_and_reset_all_of_them"),
            *ENTRY_RECOVERY("epochs_are_read_from_the_log_when_their_file_is_missing_or_wrong"),
            *EPOCHS(
                "walk_over_two_logs_ends_at_the_last_common_entry",
                "retention_keeps_the_term_before_the_begin",
            ),
            *golden("epoch_keeps_what_high_watermark_loses"),
        ),
    ),
    Scenario(
        "rocketmq#6609",
        "Consume queues are built past what is confirmed when a broker starts",
        "queues show committed messages only",
        ("rocketmq#6609",),
        (
            *POWER_LOSS("queues_hold_what_was_committed_whenever_the_power_fails"),
            *DLEDGER_LOG("uncommitted_records_cannot_be_read"),
        ),
    ),
    Scenario(
        "rocketmq#4800",
        "Masters are exchanged without need while one direction is cut",
        "who still hears the leader keeps it, and a leader that cannot hear a majority goes",
        ("rocketmq#4800",),
        (
            *golden("prevote_disconnect_of_one_link_is_harmless", "check_quorum_leader_steps_down"),
            *ELECTIONS("s13_leader_that_hears_nobody_steps_down"),
            *CHAOS_NETWORK("directions_that_stop_alone"),
        ),
    ),
)
