"""Which node of the group a consumer should pull from next: the `suggestWhichBrokerId` of every answer.

A consumer that names the zone of a follower (broker/consume/nearest.py) pulls from that one.
The leader would have to read cold files for a consumer that is further behind than the machine's memory
reaches. With slaveReadEnable such a consumer is sent to a follower, and returns to the leader when it has
caught up (PullMessageProcessor's whichBrokerWhenConsumeSlowly). A follower shows committed messages only,
though perhaps later than the leader; so one is suggested only while it is much closer to the leader's end
than the consumer is, and it keeps the consumer only while it receives heartbeats from a leader.
"""

import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from broker.config import LEADER_BROKER_ID, BrokerConfig, follower_broker_id
from broker.consume.nearest import NearestReplica, QueueOfClient
from broker.state.groups import SubscriptionGroupConfig
from commitlog.log import MessageLog
from commitlog.record import PHYSICAL_OFFSET_AT
from dledger.core.types import PushState
from dledger.server import DLedgerServer

LEADER_ID = str(LEADER_BROKER_ID)
LOOK_INTERVAL_MS = 1_000
"""Interval (ms) at which the followers' progress is read."""
CLOSER_BY = 2
"""A follower must be this many times closer to the end than the consumer."""
NEAR_LAG_BYTES_MAX = 16 << 20
"""No consumer is sent to a follower that is further behind, however near it is."""
_UNKNOWN_MEMORY_BYTES = 8 << 30


@dataclass(frozen=True, slots=True)
class _Follower:
    broker_id: int
    lag_bytes: int


def machine_memory_bytes() -> int:
    """The machine's physical memory (StoreUtil.TOTAL_PHYSICAL_MEMORY_SIZE)."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return _UNKNOWN_MEMORY_BYTES


def warm_bytes(config: BrokerConfig, memory_bytes: int) -> int:
    """Bytes before the log's end that are assumed to be in the machine's memory."""
    return memory_bytes * config.memory_ratio_percent // 100


class ReadAdvice:
    """Decides for the pulls of one node."""

    def __init__(
        self,
        config: BrokerConfig,
        log: MessageLog,
        engine: DLedgerServer | None,
        now_ms: Callable[[], int],
        memory_bytes: int,
        nearest: NearestReplica,
    ) -> None:
        self.is_enabled = config.slave_read_enable and engine is not None
        self._config = config
        self._log = log
        self._engine = engine
        self._now_ms = now_ms
        self._nearest = nearest
        self._lag_max = warm_bytes(config, memory_bytes)
        self._followers: list[_Follower] = []
        self._looked_ms = -LOOK_INTERVAL_MS

    def near(self, zone: str, group: SubscriptionGroupConfig | None, queue: QueueOfClient) -> str | None:
        """The broker id for a consumer in this zone, after any answer; None: its zone decides nothing. A
        group whose brokerId is not 0 has its node already.
        """
        if not self.is_enabled or not zone or (group is not None and group.broker_id):
            return None
        is_leader = self._log.is_writable()
        if zone == self._config.zone:
            if is_leader:
                return LEADER_ID
            is_good = self._hears_leader() and self._nearest.is_fresh()
            return str(self._config.follower_broker_id) if is_good else LEADER_ID
        if not is_leader:
            return None
        self._look()
        near = {each.broker_id for each in self._followers if each.lag_bytes <= NEAR_LAG_BYTES_MAX}
        fit = sorted(near & self._nearest.in_zone(zone))
        if not fit or not self._nearest.may_send(queue):
            return None
        return str(fit[zlib.crc32(f"{queue}".encode()) % len(fit)])

    def after(self, records: bytes, group: SubscriptionGroupConfig | None) -> str:
        """The broker id to pull from after an answer with these records, at least one."""
        if not self.is_enabled:
            return LEADER_ID
        first = int.from_bytes(records[PHYSICAL_OFFSET_AT : PHYSICAL_OFFSET_AT + 8], "big")
        lag_bytes = self._log.max_position - first
        home = LEADER_ID if group is None else str(group.broker_id)
        if lag_bytes <= self._lag_max:
            return home
        if not self._log.is_writable():
            return str(self._config.follower_broker_id) if self._hears_leader() else LEADER_ID
        return self._follower_for(lag_bytes, group) or home

    def _hears_leader(self) -> bool:
        engine = self._engine
        leader_id = None if engine is None else engine.leader_id
        is_other = leader_id is not None and leader_id != self._config.dledger_self_id
        return is_other and engine is not None and engine.is_connected(leader_id or "")

    def _follower_for(self, lag_bytes: int, group: SubscriptionGroupConfig | None) -> str | None:
        """One that is far enough; the one the group names, or else always the same for a group."""
        self._look()
        fit = [each.broker_id for each in self._followers if each.lag_bytes * CLOSER_BY <= lag_bytes]
        if not fit:
            return None
        if group is not None and group.which_broker_when_consume_slowly in fit:
            return str(group.which_broker_when_consume_slowly)
        name = "" if group is None else group.name
        return str(fit[zlib.crc32(name.encode()) % len(fit)])

    def _look(self) -> None:
        now_ms = self._now_ms()
        engine = self._engine
        if engine is None or now_ms - self._looked_ms < LOOK_INTERVAL_MS:
            return
        self._looked_ms = now_ms
        self._followers = [
            _Follower(follower_broker_id(peer.id), peer.lag_bytes)
            for peer in engine.status().peers
            if peer.push_state is PushState.APPEND
            and peer.lag_bytes is not None
            and engine.is_connected(peer.id)
        ]
