"""What this node knows of consumers, shared by everything that serves or manages them."""

from collections.abc import Callable
from dataclasses import dataclass

from broker.config import BrokerConfig
from broker.consume.clients import ClientRegistry, RunningGroups
from broker.consume.offset_commits import OffsetCommits
from broker.consume.offset_resets import AppliedResets, OffsetResets
from broker.sql92.filters import SqlFilters
from broker.state.state import ReplicatedState
from commitlog.log import MessageLog


@dataclass(frozen=True, slots=True)
class Consumers:
    """`commits` is a service: it stores what is pending when the broker stops."""

    clients: ClientRegistry
    running_groups: RunningGroups
    commits: OffsetCommits
    resets: OffsetResets
    sql_filters: SqlFilters


def make_consumers(
    config: BrokerConfig,
    log: MessageLog,
    state: ReplicatedState,
    clients: ClientRegistry,
    clock: Callable[[], int],
    now_ms: Callable[[], int],
) -> Consumers:
    """`clock` is the wall clock, `now_ms` a monotonic one, both in ms."""
    groups = RunningGroups(clients, now_ms)
    resets = OffsetResets(lambda: config.reset_marks_max)
    AppliedResets(log, state, resets, groups, clock, now_ms)
    sql_filters = SqlFilters()
    if config.enable_property_filter:
        sql_filters.prepare()
    return Consumers(clients, groups, OffsetCommits(state, log), resets, sql_filters)
