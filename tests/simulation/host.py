"""A simulated DLedger host: the steps of the driver around `dledger.core.Node`, on virtual time and disk.

The order is the driver's: receive* and propose, the term-start entry, take_output, log operations into the
store, send_now, an asynchronous disk that makes hard state and log durable batch after batch,
send_after_persist, persisted.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dledger.core.config import Config
from dledger.core.epochs import EpochCache
from dledger.core.membership import Configuration, ConfigurationEntry, encode_configuration
from dledger.core.messages import AppendRequest, Message
from dledger.core.node import recovered_configurations
from dledger.core.output import Append, Envelope, LogOp, Output, Rejection, Reset, TruncateFrom
from dledger.core.types import NO_TERM, CorruptRangeError, HardState, Impairment, ResponseCode
from tests.simulation.clock import Event, NodeClock
from tests.simulation.surroundings import Moment, SeededRng, Surroundings
from tests.support.memory_log import MemoryLog, MemoryWrites, ResetOp, TruncateOp

IDLE_TICKS_MAX = 5
"""Ticks in a row at one moment of the node's clock, nothing received; more: the deadline does not move."""


@dataclass(slots=True)
class Batch:
    """One trip to the disk."""

    hard_state: HardState | None = None
    after: list[Envelope] = field(default_factory=list)
    writes: MemoryWrites | None = None
    last_index: int = -1
    last_term: int = 0
    is_healed: bool = False


OnDone = Callable[[ResponseCode], None]
OnRead = Callable[[ResponseCode, int], None]


class Host:
    """One member; survives its node, whose store and hard state are kept over a crash."""

    def __init__(
        self,
        world: Surroundings,
        config: Config,
        clock: NodeClock,
        store: MemoryLog,
        first: Configuration | None = None,
    ) -> None:
        """`first`: the members of its configuration file, where this node is none of the voters."""
        self.first = first
        self.world = world
        self.config = config
        self.clock = clock
        self.store = store
        self.hard_state = HardState(0, None)
        self.impairment: Impairment | None = None
        """The durable mark."""
        self.is_up = False
        self.incarnation = 0
        self._new_life()

    @property
    def name(self) -> str:
        return self.config.self_id

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms(self.world.clock.now_us)

    def _new_life(self) -> None:
        self.incarnation += 1
        self.paused_until_us = 0
        self._inbox: list[tuple[str, Message]] = []
        self._done: dict[int, OnDone] = {}
        self._reads: dict[int, list[OnRead]] = {}
        self._gathering = Batch()
        self.batch_in_flight: Batch | None = None
        self._turn: Event | None = None
        self._timer: Event | None = None
        self._timer_ms = 0
        self._idle_ticks = 0
        self._last_tick_ms = -1

    # ---- life and death

    def start(self) -> None:
        """Starts a node on what the disk holds."""
        assert not self.is_up
        self._new_life()
        self.is_up = True
        self.node = self.world.make_node(
            self.config,
            self.hard_state,
            self.store,
            SeededRng(self.world.rng),
            self.now_ms,
            self.impairment,
            self.first,
        )
        self.world.watcher.started(self)
        self.world.network.endpoint_up(self.name)
        self._schedule_turn()

    def crash(self, rng: random.Random | None = None, *, is_within_batch: bool = False) -> None:
        """Power loss: with `rng`, the batch under way may have reached the disk in part, in its order."""
        self._stop_life()
        if rng is not None and self.batch_in_flight is not None and (is_within_batch or rng.random() < 0.5):
            if self.batch_in_flight.hard_state is not None:
                self.hard_state = self.batch_in_flight.hard_state
            if self.batch_in_flight.writes is not None:
                self.store.write(self.batch_in_flight.writes, sync=False)
        self.store.crash(rng)
        self.world.network.endpoint_down(self.name)

    def pause(self, duration_us: int) -> None:
        """The process stands still (SIGSTOP, a long collection); what arrives waits."""
        self.paused_until_us = self.world.clock.now_us + duration_us

    def _stop_life(self) -> None:
        assert self.is_up
        self.is_up = False
        for event in (self._turn, self._timer):
            if event is not None:
                event.cancel()
        self.world.watcher.trace(self, "crash")

    # ---- what its disk may lose while it is down

    def impair(self, reason: str, *, is_vote_lost: bool) -> None:
        """Marks it durably, before anything that was lost is overwritten."""
        assert not self.is_up, self.name
        old = self.impairment
        is_vote_lost = is_vote_lost or (old is not None and old.is_vote_lost)
        self.impairment = Impairment(
            old.repair_id + 1 if old else self.incarnation << 20, is_vote_lost, reason
        )

    def shorten(self, end_index: int) -> None:
        """Recovery found damage behind this entry and dropped what follows."""
        self.impair(f"its log was damaged behind {end_index}", is_vote_lost=False)
        self.world.watcher.lost_entries(self, end_index + 1)
        self.store.shorten(end_index)

    def lose_vote(self) -> None:
        """All it knows of terms is its last entry's."""
        self.impair("its vote is lost", is_vote_lost=True)
        entries = self.store.disk.entries
        self.hard_state = HardState(entries[-1].term if entries else NO_TERM, None)
        self.world.watcher.lost_vote(self)

    def wipe(self) -> None:
        """An empty disk in place of the old one."""
        self.impair("its disk was empty", is_vote_lost=True)
        self.world.watcher.lost_entries(self, 0)
        self.store.wipe()
        self.hard_state = HardState(NO_TERM, None)
        self.world.watcher.lost_vote(self)

    # ---- inputs

    def deliver(self, sender: str, message: Message) -> None:
        self._inbox.append((sender, message))
        self._schedule_turn()

    def peer_connected(self, peer: str) -> None:
        self.node.peer_connected(peer, self.now_ms)
        self._after_input("peer_connected", peer)

    def peer_disconnected(self, peer: str) -> None:
        self.node.peer_disconnected(peer, self.now_ms)
        self._after_input("peer_disconnected", peer)

    def propose(self, bodies: Sequence[bytes], on_done: OnDone) -> tuple[ResponseCode, int]:
        """As DLedgerServer.handle_append: the code, and the first index on SUCCESS."""
        expected = self.node.check_append(len(bodies))
        proposal = self.node.propose(len(bodies), self.now_ms)
        if isinstance(proposal, Rejection):
            assert proposal.code is expected, f"{self.name}: check_append {expected!r}, propose {proposal}"
            self._after_input("propose", len(bodies), proposal.code.name)
            return proposal.code, -1
        assert expected is ResponseCode.SUCCESS, f"{self.name}: check_append {expected!r}, propose accepts"
        assert proposal.count == len(bodies), (proposal, len(bodies))
        self._lay_out(proposal.first_index, proposal.term, bodies)
        self._done[proposal.first_index] = on_done
        self._after_input("propose", len(bodies), "at", proposal.first_index)
        return ResponseCode.SUCCESS, proposal.first_index

    def read_index(self, on_done: OnRead) -> ResponseCode:
        """As DLedgerServer.read_index."""
        read_id = self.node.read_index(self.now_ms)
        if isinstance(read_id, Rejection):
            self._after_input("read", read_id.code.name)
            return read_id.code
        self._reads.setdefault(read_id, []).append(on_done)
        self._after_input("read", read_id)
        return ResponseCode.SUCCESS

    def transfer_leadership(self, transferee: str) -> ResponseCode:
        code = self.node.transfer_leadership(transferee, self.now_ms)
        self._after_input("transfer to", transferee, code.name)
        return code

    @property
    def newest(self) -> ConfigurationEntry:
        """The newest configuration in its log; of a node that is down, as it would find it."""
        if self.is_up:
            return self.node.members.latest
        log = EpochCache(self.store.log_state())
        first = self.first or Configuration.of_voters(self.config.peers)
        return recovered_configurations(self.hard_state, log, first)[-1]

    @property
    def configuration(self) -> Configuration:
        return self.newest.configuration

    def propose_configuration(self, configuration: Configuration) -> ResponseCode:
        """As DLedgerServer.propose_configuration."""
        proposal = self.node.propose_configuration(configuration, self.now_ms)
        if isinstance(proposal, Rejection):
            self._after_input("propose", configuration, proposal.code.name)
            return proposal.code
        body = encode_configuration(configuration)
        self.store.append_configuration(proposal.first_index, proposal.term, body)
        self.world.watcher.appended(self, proposal.first_index)
        self._done[proposal.first_index] = lambda code: None
        self._after_input("propose", configuration, "at", proposal.first_index)
        return ResponseCode.SUCCESS

    def set_disk_full(self, is_full: bool) -> None:
        self.node.set_disk_full(is_full)
        self._after_input("disk full", is_full)

    def delete_before(self, index: int) -> None:
        """Retention."""
        self.store.delete_before(index)
        self.node.log_begins_at(index)
        self.world.watcher.cut(self)
        self._after_input("log begins at", index)

    def save_checkpoint(self) -> None:
        self.store.save_checkpoint(self.store.disk.end_index, self.node.commit_index)

    def _after_input(self, *text: object) -> None:
        self.world.watcher.trace(self, *text)
        self.world.watcher.checked(self)
        self._schedule_turn()

    # ---- one turn

    def _schedule_turn(self) -> None:
        if self._turn is None and self.is_up:
            turn_us = self.world.rng.randint(0, self.world.disk.turn_max_us)
            self._turn = self.world.clock.schedule(turn_us, self._run_turn)

    def _defer(self, action: Callable[[], None]) -> Event | None:
        """While the process stands still, puts an action off to its end."""
        wait_us = self.paused_until_us - self.world.clock.now_us
        return self.world.clock.schedule(wait_us, action) if wait_us > 0 else None

    def _run_turn(self) -> None:
        self._turn = self._defer(self._run_turn)
        if self._turn is not None:
            return
        now_ms = self.now_ms
        if self._inbox:
            self._idle_ticks = 0
        self._receive_all(now_ms)
        if now_ms >= self.node.deadline_ms():
            self._tick(now_ms)
        self._lay_out_term_start()
        step = self.node.next_configuration(now_ms)
        if step is not None:
            self.world.watcher.checked(self)  # what is committed so far has the majority of the old voters
            self.propose_configuration(step)
        self._carry_out(self.node.take_output(now_ms))
        self.world.watcher.checked(self)
        self.world.watcher.turned(self)
        self._arm_timer()

    def _receive_all(self, now_ms: int) -> None:
        inbox, self._inbox = self._inbox, []
        for sender, message in inbox:
            self.world.watcher.trace(self, "<-", sender, message)
            if isinstance(message, AppendRequest):
                try:
                    self.store.verify_range(message.entries)
                except CorruptRangeError:
                    continue
            self.node.receive(sender, message, now_ms)
            self._lay_out_term_start()

    def _tick(self, now_ms: int) -> None:
        self._idle_ticks = self._idle_ticks + 1 if now_ms == self._last_tick_ms else 0
        self._last_tick_ms = now_ms
        assert self._idle_ticks <= IDLE_TICKS_MAX, f"{self.name}: tick does not move the deadline {now_ms}"
        self.node.tick(now_ms)

    def _lay_out_term_start(self) -> None:
        proposal = self.node.take_term_start()
        if proposal is not None:
            body = f"term {proposal.term} of {self.name}".encode()
            self._lay_out(proposal.first_index, proposal.term, [body])
            self.world.on_moment(self, Moment.LEADING)

    def _lay_out(self, first_index: int, term: int, bodies: Sequence[bytes]) -> None:
        self.store.append_bodies(first_index, term, bodies)
        self.world.watcher.appended(self, first_index)

    def _carry_out(self, output: Output) -> None:
        for operation in output.log_ops:
            self._apply(operation)
        for envelope in output.send_now:
            self._send(envelope)
        if output.hard_state is not None:
            self._gathering.hard_state = output.hard_state
        self._gathering.after.extend(output.send_after_persist)
        self._gathering.is_healed |= output.is_healed
        self._kick()
        for event in output.events:
            self.world.watcher.trace(self, "event", event)
        for completion in output.completions:
            self.world.watcher.completed(self, completion)
            self._done.pop(completion.first_index)(completion.code)
        for read in output.reads:
            for on_read in self._reads.pop(read.read_id):
                on_read(read.code, read.index)

    def _apply(self, operation: LogOp) -> None:
        self.world.watcher.trace(self, "log", operation)
        match operation:
            case Append(entries):
                self.store.append_range(entries)
                self.world.watcher.appended(self, entries.first_index)
            case TruncateFrom(index):
                self.store.truncate_from(index)
                self.world.watcher.cut(self)
            case Reset(begin_index, begin_position):
                self.store.reset(begin_index, begin_position)
                self.world.watcher.cut(self)

    def _send(self, envelope: Envelope) -> None:
        self.world.watcher.trace(self, "->", envelope.to, envelope.message)
        self.world.watcher.sent(self, envelope)
        self.world.network.send(self.name, envelope.to, envelope.message)

    # ---- the disk

    def _kick(self) -> None:
        """Sends the next batch to the disk if the disk is free and there is something to write."""
        if self.batch_in_flight is not None:
            return
        batch = self._gathering
        batch.writes = self.store.take_writes()
        if batch.writes is None and batch.hard_state is None and not batch.after:
            return
        batch.last_index, batch.last_term = self.node.end_index, self.node.end_term
        self._gathering = Batch()
        if batch.writes is None and batch.hard_state is None:
            self._promise(batch)
            return
        self.batch_in_flight = batch
        if batch.hard_state is not None:
            self.world.on_moment(self, Moment.VOTING)
        if batch.writes is not None and any(isinstance(op, TruncateOp | ResetOp) for op in batch.writes.ops):
            self.world.on_moment(self, Moment.CUTTING)
        incarnation = self.incarnation
        self.world.clock.schedule(self._disk_us(), lambda: self._durable(batch, incarnation))

    def _disk_us(self) -> int:
        disk, rng = self.world.disk, self.world.rng
        delay_us = rng.randint(disk.write_min_us, disk.write_max_us)
        if disk.stall_probability and rng.random() < disk.stall_probability:
            delay_us += rng.randint(0, disk.stall_max_us)
        return delay_us

    def _durable(self, batch: Batch, incarnation: int) -> None:
        if incarnation != self.incarnation or not self.is_up:
            return
        if self._defer(lambda: self._durable(batch, incarnation)) is not None:
            return
        self.batch_in_flight = None
        if batch.hard_state is not None:
            self.hard_state = batch.hard_state
        if batch.writes is not None:
            self.store.write(batch.writes, sync=True)
            self.store.written(batch.writes)
        self.world.watcher.durable(self)
        if batch.is_healed:
            self.impairment = None
            self.world.watcher.healed(self)
            self.node.healed()
        self._promise(batch)
        self.world.watcher.checked(self)
        self._schedule_turn()

    def _promise(self, batch: Batch) -> None:
        for envelope in batch.after:
            self._send(envelope)
        if batch.writes is not None:
            self.node.persisted(batch.last_index, batch.last_term, self.now_ms)

    # ---- timers

    def _arm_timer(self) -> None:
        deadline_ms = self.node.deadline_ms()
        if self._timer is not None:
            if self._timer_ms == deadline_ms:
                return
            self._timer.cancel()
        self._timer_ms = deadline_ms
        delay_us = self.clock.world_us(deadline_ms) - self.world.clock.now_us
        self._timer = self.world.clock.schedule(delay_us, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = self._defer(self._on_timer)
        if self._timer is None:
            self._schedule_turn()
