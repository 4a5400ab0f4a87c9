"""Clients of the simulated cluster: the product's own, with what they ask for written into the history."""

from typing import Any

from commitlog.record import Record
from ledgermq.messaging import decode_records
from remoting.client.aio import RemotingClient
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import ConnectFailedError, RemotingError
from tests.histories.operations import Commit, Fetch, Operation, Outcome, Poll, Queue, Seek
from tests.node_simulation.invariants import Checker
from tests.node_simulation.retentions import Retained
from tests.simulation.clock import VirtualClock
from tests.simulation.invariants import InvariantError


class History:
    """The operations of all clients, by world time."""

    def __init__(self, clock: VirtualClock, checker: Checker, retained: Retained) -> None:
        self.clock = clock
        self.checker = checker
        self.retained = retained
        self.operations: list[Operation] = []

    @property
    def now(self) -> int:
        return self.clock.now_us

    @property
    def has_lost(self) -> bool:
        """Whether acknowledged messages are lost, as they may be (see `losses`): others get their offsets
        then, and who consumed the lost ones does not get the others.
        """
        return bool(self.checker.disks.lost)

    def add(self, operation: Operation) -> None:
        self.operations.append(operation)

    def queue(self, address: str, topic: str, queue_id: int) -> Queue:
        """What the history calls the queue of the broker at this address."""
        return Queue(topic, queue_id)

    def shown(self, address: str, record: Record) -> None:
        """The node at this address answered a pull with the record. Raises InvariantError."""
        self.checker.shown(address, record)


class RecordingClient(RemotingClient):
    """Writes down pulls, and the offsets that are stored and asked for. `name` is the history's process."""

    def __init__(self, history: History, name: str) -> None:
        super().__init__()
        self._history = history
        self._name = name

    async def invoke(self, address: str, command: RemotingCommand, timeout_s: float = 3.0) -> RemotingCommand:
        invoked = self._history.now
        outcome, answer = Outcome.INFO, None
        try:
            answer = await super().invoke(address, command, timeout_s)
            outcome = Outcome.OK if answer.code == ResponseCode.SUCCESS else Outcome.FAIL
        except ConnectFailedError:
            outcome = Outcome.FAIL
            raise
        except RemotingError:
            raise
        finally:
            self._record(address, command, invoked, outcome, answer)
        return answer

    def _record(
        self, address: str, command: RemotingCommand, invoked: int, outcome: Outcome, answer: Any
    ) -> None:
        ext, now = command.ext_fields, self._history.now
        completed = now if answer is not None else None
        if command.code == RequestCode.PULL_MESSAGE:
            if outcome is Outcome.OK:
                self._polled(address, command, invoked, answer)
            elif answer is not None and answer.code == ResponseCode.PULL_OFFSET_MOVED:
                self._moved(address, command, int(answer.ext_fields["nextBeginOffset"]))
        elif command.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            if outcome is Outcome.FAIL and answer is not None:
                outcome = Outcome.INFO  # refused, or a majority was not reached in time
            self._history.add(
                Commit(
                    f"{self._name}/commit", invoked, completed, outcome, ext["consumerGroup"],
                    self._queue(address, ext), int(ext["commitOffset"]),
                )
            )  # fmt: skip
        elif command.code == RequestCode.QUERY_CONSUMER_OFFSET and answer is not None:
            queue = self._queue(address, ext)
            found = int(answer.ext_fields["offset"]) if outcome is Outcome.OK else None
            is_known = outcome is Outcome.OK or answer.code == ResponseCode.QUERY_NOT_FOUND
            self._history.add(
                Fetch(
                    f"{self._name}/{queue}", invoked, completed,
                    Outcome.OK if is_known else Outcome.FAIL, ext["consumerGroup"], queue, found,
                )
            )  # fmt: skip

    def _moved(self, address: str, command: RemotingCommand, offset: int) -> None:
        """Who is behind what is deleted goes on there; a client that is moved over more has skipped it."""
        queue = self._queue(address, command.ext_fields)
        is_over_deleted = offset <= self._history.retained.first_offsets.get(queue, 0)
        if int(command.ext_fields["queueOffset"]) < offset and is_over_deleted:
            self._history.add(Seek(f"{self._name}/{queue}", self._history.now, queue, offset))

    def _polled(self, address: str, command: RemotingCommand, invoked: int, answer: RemotingCommand) -> None:
        ext = command.ext_fields
        queue = self._queue(address, ext)
        records = decode_records(answer.body)
        for record in records:
            try:
                self._history.shown(address, record)
            except InvariantError as error:
                self._loop.call_exception_handler({"message": "a pull", "exception": error})
        self._history.add(
            Poll(
                f"{self._name}/{queue}",
                invoked,
                self._history.now,
                Outcome.OK,
                queue,
                int(ext["queueOffset"]),
                tuple((record.queue_offset, value_of(record.body)) for record in records),
                int(answer.ext_fields["nextBeginOffset"]),
            )
        )

    def _queue(self, address: str, ext: Any) -> Queue:
        return self._history.queue(address, ext["topic"], int(ext["queueId"]))


def value_of(body: bytes) -> str:
    """The unique value a workload put in front of a body's padding."""
    return bytes(body).partition(b".")[0].decode()


def body_of(value: str, size_bytes: int) -> bytes:
    return value.encode() + b"." + b"x" * max(0, size_bytes - len(value) - 1)
