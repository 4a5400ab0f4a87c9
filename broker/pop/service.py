"""POP_MESSAGE (200050), and acknowledgements and changes of popped messages, on the writable leader
(PopMessageProcessor).

All requests of a loop turn share a record, and each is answered when that is committed: no consumer has a
message that a later leader does not have in its table. A pop that finds nothing is held until a message
arrives, at most for the time that it asks for. While a new leader loads the table of messages in flight,
requests wait for it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from broker.background import Spawn
from broker.consume.clients import ClientConnection
from broker.leadership import Readiness
from broker.pop.acks import PopAcks
from broker.pop.checks import PopChecks
from broker.pop.fetch import Fetched, Fetcher, Pop
from broker.pop.ledger import PopLedger
from broker.pop.long_polling import Held, PopLongPolling
from broker.pop.ops import GroupQueueKey
from broker.pop.revival import Revival
from broker.responses import put_error
from broker.state.state import ReplicatedState, StateChangeError
from commitlog.log import MessageLog, PutStatus
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, error_response, success_response
from remoting.connection import Connection
from remoting.errors import HeaderError, RequestError
from remoting.headers.pop import PopMessageRequestHeader
from remoting.pop_receipts import ORDER_REVIVE_QUEUE
from remoting.router import Batch, BatchHandler, Router
from remoting.slices import one_step

POLL_TIME_MAX_MS = 60_000
"""Clients ask for 15 or 20 s, and wait 10 s longer for the answer."""
DEFERRED_MAX = 10_000
"""Requests that wait for a leader, for its table, or for their group to be made."""
ANSWERS_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of messages whose pops are not committed yet; beyond it pops are answered POLLING_FULL."""
TOO_MUCH_OUT = (
    "[OVERLOAD]too many messages are in flight (popInflightMessageThreshold of a queue, "
    "popInflightTotal), or the log accepts no records now"
)
TOO_MANY_WAIT = "[OVERLOAD]too many pops wait, or the node stops"
BEING_REPAIRED = "[REPAIR]a message is damaged on this node's disk and is being repaired"
UNREADABLE = "the messages in flight cannot be loaded on this node; its log says why"

_Handler = Callable[[RemotingCommand, ClientConnection], None]


class PopService:
    """Handles the requests of one broker; holds pops, and requests that wait for the table."""

    def __init__(
        self,
        log: MessageLog,
        state: ReplicatedState,
        router: Router,
        clock: Callable[[], int],
        now_ms: Callable[[], int],
        spawn: Spawn,
        ledger: PopLedger,
        revival: Revival,
        readiness: Readiness,
        checks: PopChecks,
        fetcher: Fetcher,
    ) -> None:
        self._router = router
        self._clock = clock
        self._spawn = spawn
        self._log = log
        self._state = state
        self._ledger = ledger
        self._revival = revival
        self._readiness = readiness
        self._checks = checks
        self.fetcher = fetcher
        acks = PopAcks(log, state, router, clock, ledger, self._on_free)
        self._handlers: dict[int, _Handler] = {
            RequestCode.POP_MESSAGE: self._pop,
            RequestCode.ACK_MESSAGE: acks.ack,
            RequestCode.BATCH_ACK_MESSAGE: acks.batch_ack,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: acks.change_invisible_time,
        }
        self.long_polling: PopLongPolling[Pop] = PopLongPolling(
            log, self._serve, self._time_out, self._end_turn, now_ms
        )
        self._deferred: list[tuple[RemotingCommand, ClientConnection]] = []
        self._waits_for_leader = False
        self._creating = 0
        self._answers_bytes = 0
        ledger.on_ready(self._on_ready)

    def batch_handlers(self) -> Mapping[int, BatchHandler]:
        return dict.fromkeys(self._handlers, self.handle)

    def handle(self, batches: Sequence[Batch]) -> None:
        """All requests of one loop turn."""
        for connection, requests in batches:
            for request in requests:
                self._admit(request, connection)
        self._end_turn()

    def connection_closed(self, connection: Connection) -> None:
        self.long_polling.waits.drop_connection(connection.connection_id)

    async def start(self) -> None:
        """Nothing runs until the first request."""

    async def stop(self) -> None:
        self.long_polling.stop()
        self._refuse_deferred()

    def _end_turn(self) -> None:
        """Write what this turn recorded in one record; its answers leave when that is committed."""
        if self._ledger.table is not None:
            self._ledger.flush()
            self._revival.wake_if_earlier()

    def _admit(self, request: RemotingCommand, connection: ClientConnection) -> None:
        if self._ledger.table is None:
            self._defer(request, connection)
            return
        try:
            self._handlers[request.code](request, connection)
        except RequestError as error:
            self._refuse(request, connection, error.code, error.remark)
        except HeaderError as error:
            self._refuse(request, connection, ResponseCode.SYSTEM_ERROR, str(error))

    # -- while there is no table

    def _defer(self, request: RemotingCommand, connection: ClientConnection) -> None:
        if self._log.is_writable() and not self._ledger.is_loading:
            self._refuse(request, connection, ResponseCode.SYSTEM_ERROR, UNREADABLE)
        elif len(self._deferred) >= DEFERRED_MAX:
            self._refuse(request, connection, ResponseCode.SYSTEM_BUSY, TOO_MANY_WAIT)
        else:
            self._deferred.append((request, connection))
            if not self._waits_for_leader:
                self._waits_for_leader = True
                self._spawn(self._wait_for_leader())

    async def _wait_for_leader(self) -> None:
        """Wait for an election that this node may win, then handle or refuse the deferred requests."""
        try:
            is_leader = await self._readiness.wait()
        finally:
            self._waits_for_leader = False
        if self._ledger.table is not None:
            self._admit_deferred()
        elif not is_leader or not self._ledger.is_loading:
            self._refuse_deferred()

    def _on_ready(self, is_ready: bool) -> None:
        if is_ready:
            self._admit_deferred()
        else:
            self.long_polling.end_all(self._refuse_held)
            self._refuse_deferred()

    def _admit_deferred(self) -> None:
        deferred, self._deferred = self._deferred, []
        for request, connection in deferred:
            self._admit(request, connection)
        self._end_turn()

    def _refuse_deferred(self) -> None:
        deferred, self._deferred = self._deferred, []
        refusal = self._readiness.refusal()
        for request, connection in deferred:
            self._refuse(request, connection, refusal.code, refusal.remark)

    def _refuse_held(self, pop: Pop) -> None:
        refusal = self._readiness.refusal()
        self._refuse(pop.request, pop.connection, refusal.code, refusal.remark)

    # -- pops

    def _pop(self, request: RemotingCommand, connection: ClientConnection) -> None:
        """200050. Raises RequestError, HeaderError."""
        header = PopMessageRequestHeader.parse(request.ext_fields)
        group = self._state.groups.get(header.consumer_group)
        if group is None:
            self._create_group(request, connection, header.consumer_group)
            return
        self._checks.pop(header)
        self._checks.place(group, header.topic, header.queue_id)
        pop = Pop(request, connection, header, self._checks.filter_of(header))
        if request.is_oneway or self._serve(pop):
            return
        self._hold(pop)

    def _create_group(self, request: RemotingCommand, connection: ClientConnection, name: str) -> None:
        if self._creating >= DEFERRED_MAX:
            raise RequestError(ResponseCode.SYSTEM_BUSY, TOO_MANY_WAIT)
        self._creating += 1
        self._spawn(self._pop_for_new_group(request, connection, name))

    async def _pop_for_new_group(
        self, request: RemotingCommand, connection: ClientConnection, name: str
    ) -> None:
        try:
            group = await self._state.ensure_group(name)
        except StateChangeError as error:
            self._refuse(request, connection, *put_error(error.status))
            return
        finally:
            self._creating -= 1
        if group is None:
            remark = f"subscription group [{name}] does not exist"
            self._refuse(request, connection, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
            return
        # All pops of the group waited for it, and would go on in the same turn.
        admit = partial(self._admit_late, request, connection)
        await self._router.in_slices(one_step(admit), connection.remote_host)

    def _admit_late(self, request: RemotingCommand, connection: ClientConnection) -> None:
        self._admit(request, connection)
        self._end_turn()  # in the same turn of the loop: `record` demands it

    def _serve(self, pop: Pop) -> bool:
        """Answer the pop; False when it found nothing and has to be held."""
        if not pop.connection.is_open:
            return True
        if self._ledger.table is None:
            self._refuse_held(pop)
            return True
        if self._answers_bytes >= ANSWERS_BYTES_MAX:
            self._answer(pop, Fetched(self._clock()), ResponseCode.POLLING_FULL, TOO_MUCH_OUT)
            return True
        fetched = self.fetcher.fetch(pop)
        if fetched.count:
            self._answers_bytes += fetched.size_bytes
            self._ledger.when_committed(partial(self._on_committed, pop, fetched))
            return True
        if fetched.is_damaged:
            self._answer(pop, fetched, ResponseCode.SYSTEM_BUSY, BEING_REPAIRED)
            return True
        if fetched.is_limited:
            self._answer(pop, fetched, ResponseCode.POLLING_FULL, TOO_MUCH_OUT)
            return True
        self._wake_later(pop, fetched)
        return False

    def _wake_later(self, pop: Pop, fetched: Fetched) -> None:
        header = pop.header
        wake = partial(self.long_polling.wake, header.consumer_group, header.topic)
        if fetched.has_more:
            wake()
        elif fetched.free_in_ms is not None:
            self.long_polling.wake_at(header.consumer_group, header.topic, fetched.free_in_ms)

    def _hold(self, pop: Pop) -> None:
        header = pop.header
        fetched = Fetched(self._clock())
        if header.poll_time_ms <= 0:
            self._answer(pop, fetched, ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")
            return
        queue_id = max(header.queue_id, -1)
        connection_id = pop.connection.connection_id
        held = Held(header.consumer_group, header.topic, queue_id, connection_id, pop)
        if not self.long_polling.hold(held, min(header.poll_time_ms, POLL_TIME_MAX_MS)):
            self._answer(pop, fetched, ResponseCode.POLLING_FULL, TOO_MANY_WAIT)

    def _time_out(self, pop: Pop) -> None:
        self._answer(pop, Fetched(self._clock()), ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")

    def _on_free(self, key: GroupQueueKey) -> None:
        self.long_polling.wake(key.group, key.topic, key.queue_id)

    def _on_committed(self, pop: Pop, fetched: Fetched, status: PutStatus) -> None:
        self._answers_bytes -= fetched.size_bytes
        assert self._answers_bytes >= 0, f"{self._answers_bytes} bytes of answers wait"
        if status is PutStatus.PUT_OK:
            self._answer(pop, fetched, ResponseCode.SUCCESS, "FOUND")
        else:
            self._refuse(pop.request, pop.connection, *put_error(status))

    def _answer(self, pop: Pop, fetched: Fetched, code: ResponseCode, remark: str) -> None:
        """Every answer has all number fields: clients parse them in answers without messages, too."""
        if not pop.connection.is_open:
            return
        header = pop.header
        ext = {
            "popTime": str(fetched.pop_time_ms),
            "invisibleTime": str(header.invisible_time_ms),
            "reviveQid": str(ORDER_REVIVE_QUEUE if header.order else 0),
            "restNum": str(fetched.rest),
            "startOffsetInfo": ";".join(fetched.starts),
            "msgOffsetInfo": ";".join(fetched.offsets),
        }
        if header.order:
            ext["orderCountInfo"] = ";".join(fetched.counts)
        body = b"".join(fetched.bodies)
        answer = success_response(pop.request, ext, body, remark, code)
        self._router.answer(pop.request, pop.connection, answer)

    def _refuse(self, request: RemotingCommand, connection: ClientConnection, code: int, remark: str) -> None:
        self._router.answer(request, connection, error_response(request, code, remark))
