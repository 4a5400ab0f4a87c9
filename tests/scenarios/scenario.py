"""What a named scenario is, and short ways to name the tests that hold it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scenario:
    """`holds`: what must be true. `known_from`: where it happened, or the source that reports it.
    `tests`: pytest node ids. `waits_for`: the features without which it, or the rest of it, cannot be told.
    """

    name: str
    title: str
    holds: str
    known_from: tuple[str, ...]
    tests: tuple[str, ...] = ()
    waits_for: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    scenarios: tuple[Scenario, ...]


@dataclass(frozen=True, slots=True)
class File:
    """A file of tests, by its path below `tests`."""

    path: str

    def __call__(self, *names: str) -> tuple[str, ...]:
        """The node ids of the tests of these names, which leave out `test_`."""
        return tuple(f"tests/{self.path}::test_{name}" for name in names)


def golden(*scripts: str) -> tuple[str, ...]:
    """The node ids of golden traces, by the names of their files."""
    return tuple(f"tests/golden/test_dledger.py::test_dledger_trace[{script}]" for script in scripts)


ELECTIONS = File("simulation/test_scenarios_elections.py")
REPLICATION = File("simulation/test_scenarios_replication.py")
SEEDS = File("simulation/test_simulation.py")
NODES = File("node_simulation/test_scenarios.py")
QUERIES = File("node_simulation/test_queries.py")
RETENTION_OF_NODES = File("node_simulation/test_retention.py")
WORKLOADS = File("node_simulation/test_workloads.py")
GROUP_LARGE_NUMBERS = File("scenarios/test_large_numbers.py")
GROUP_FAULTS = File("scenarios/test_replication_faults.py")

CHAOS_DAMAGE = File("chaos/test_file_damage.py")
CHAOS_DISKS = File("chaos/test_disk_faults.py")
CHAOS_NETWORK = File("chaos/test_network_faults.py")
CHAOS_PROCESSES = File("chaos/test_process_faults.py")
FAILOVER = File("integration/test_failover.py")
HOSTILE_CLIENTS = File("integration/test_hostile_clients.py")
IDLE = File("integration/test_idle.py")
LONG_CHAOS = File("chaos/test_long_chaos.py")
LONG_FAILOVER = File("integration/test_long_failover.py")
RESTART = File("integration/test_restart.py")

CODEC = File("unit/dledger/test_codec.py")
DISPATCHER = File("unit/dledger/test_dispatcher.py")
EPOCHS = File("unit/dledger/test_epochs.py")
HANDLER = File("unit/dledger/test_handler.py")
HARD_STATE = File("unit/dledger/test_hard_state.py")
NODE = File("unit/dledger/test_node.py")
PROMISES = File("unit/dledger/test_server_promises.py")
SERVER_FAULTS = File("unit/dledger/test_server_faults.py")
TRANSPORT = File("unit/dledger/test_transport.py")
VOTES = File("unit/dledger/test_election.py")

CHECKPOINT = File("unit/commitlog/test_checkpoint.py")
CONSUME_QUEUES = File("unit/commitlog/test_consume_queues.py")
DAMAGE_TABLE = File("unit/commitlog/test_damage_table.py")
DISK_ERRORS = File("unit/commitlog/test_disk_errors.py")
DLEDGER_LOG = File("unit/commitlog/test_dledger_commit_log.py")
ENTRY = File("unit/commitlog/test_entry.py")
ENTRY_RECOVERY = File("unit/commitlog/test_entry_recovery.py")
ENTRY_STORE = File("unit/commitlog/test_entry_store.py")
LARGE_NUMBERS = File("unit/commitlog/test_s14_large_numbers.py")
POWER_LOSS = File("unit/commitlog/test_log_power_loss.py")
QUEUE_DAMAGE = File("unit/commitlog/test_queue_damage.py")
SCRUBBER = File("unit/commitlog/test_scrubber.py")
UNSYNCED = File("unit/commitlog/test_failed_sync.py")

DELAY = File("unit/broker/test_delay.py")
TIMER_FAILOVER = File("unit/broker/timer/test_timer_failover.py")
PULL = File("unit/broker/test_pull.py")
RETENTION = File("unit/broker/test_retention.py")
STATE = File("unit/broker/test_state.py")
STATE_FILES = File("unit/broker/test_state_files.py")
REGISTRATION = File("unit/broker/test_registration.py")
ROUTES = File("unit/namesrv/test_route_info.py")
