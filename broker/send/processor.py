"""SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320) and LEDGERMQ_SEND_SEQUENCED (65003): the
path of every produced message.

All sends of a loop turn are checked in order of arrival, laid out with one MessageLog.put (a turn of more
than PUT_MESSAGES_MAX messages: with several), and answered together when the log reports that they are
committed.

Stock clients go on sending to a node that has handed leadership over, until they ask the name server again,
up to 30 s later. It forwards their sends to the new leader.

A send whose topic is still to be created is held, with every later send to the same topic behind it, so that
a connection's messages keep their order within a queue. At most heldSendsMax are held; one more is answered
SYSTEM_BUSY. Every send is answered so while the bodies of unanswered
sends have more than PENDING_BYTES_MAX.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from random import Random
from time import perf_counter

from broker.background import Spawn
from broker.config import BrokerConfig
from broker.leadership import FORWARD_LIMIT_S, FORWARDS_MAX, Forwarder, Readiness
from broker.monitoring.put_metrics import PutMetrics
from broker.monitoring.statistics import BrokerStatistics
from broker.responses import put_error
from broker.send.admission import Admission, Admitted, NeedsTopic, process_bytes
from broker.send.sequenced import SequencedAdmission
from broker.send.sequencing import SequenceRefusedError, Sequencing
from broker.send.turn import PlainRun, SendAnswers, SequencedSend, SingleSend, Turn
from broker.state.state import ReplicatedState, StateChangeError
from broker.state.topics import TopicConfig
from broker.timer.admission import TimerRules
from commitlog.log import MessageLog, PutResult, PutStatus
from commitlog.sequences import stamp_sequences, writer_key
from remoting.codes import RequestCode, ResponseCode
from remoting.command import ONEWAY_FLAG, RESPONSE_FLAG, RemotingCommand
from remoting.connection import Connection
from remoting.errors import HeaderError, RequestError
from remoting.headers.send import SendMessageRequestHeader, SequencedSendRequestHeader, send_header
from remoting.router import Batch, BatchHandler, RequestCounts
from remoting.unique_keys import UniqueKeys

LEADER_REFUSES = "this node leads: its disk is full, or it is handing leadership over"
"""In the remark, when the log of a writable leader refuses a put."""
TURN_MESSAGES_MAX = 2_500
"""Put or refused in one turn of the event loop; a batch with more is put alone."""
PUT_MESSAGES_MAX = 2_000
"""Most messages in one put (a larger batch send is put alone): the log accepts or refuses all
messages of a put, and one refusal should not fail every batch of a turn.
"""
PENDING_BYTES_MAX = 256 * 1024 * 1024
"""Bodies of sends that are held or not yet committed. The log's own bound counts messages, whatever their
size.
"""

SEND_CODES = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.LEDGERMQ_SEND_SEQUENCED,
)

FORWARDED_CODES = frozenset(SEND_CODES) - {RequestCode.LEDGERMQ_SEND_SEQUENCED}
"""A writer's numbered rows are sent again by the writer, which finds the leader itself."""
LEADER_PATIENCE_S = 1.0
"""A transfer of leadership takes less, or is given up."""

_Header = SendMessageRequestHeader | SequencedSendRequestHeader
_Held = tuple[Connection, RemotingCommand, _Header]


class SendMessageProcessor:
    """Handles the sends of a loop turn together; owns the sends that are held."""

    def __init__(
        self,
        config: BrokerConfig,
        log: MessageLog,
        readiness: Readiness,
        forwarder: Forwarder,
        state: ReplicatedState,
        counts: RequestCounts,
        clock: Callable[[], int],
        store_host: bytes,
        statistics: BrokerStatistics,
        puts: PutMetrics,
        rng: Random,
        spawn: Spawn,
        may_prepare: Callable[[], bool] = lambda: True,
        may_time: Callable[[int], bool] = lambda out_ms: True,
        pending_bytes_max: int = PENDING_BYTES_MAX,
    ) -> None:
        self._pending_bytes_max = pending_bytes_max
        self._config = config
        self._readiness = readiness
        self._forwarder = forwarder
        self._forwarded_count = 0
        self._state = state
        self._store_host = store_host
        self._spawn = spawn
        self._log = log
        self._statistics = statistics
        self._counts = counts
        self._watch = puts
        self._answers = self._make_answers()
        unique_keys = UniqueKeys(process_bytes(store_host, rng), clock)
        self._admission = Admission(
            config,
            state,
            store_host,
            unique_keys,
            rng,
            may_prepare,
            timers=TimerRules(config, clock, may_time),
        )
        self._sequenced_admission = SequencedAdmission(config, self._admission, store_host)
        self.sequencing = Sequencing(log, lambda: state.writers, clock)
        self._pending_bytes = 0
        self._put_max = min(PUT_MESSAGES_MAX, config.pending_appends_max)
        self._later: list[Batch] = []
        self._put_this_turn = 0
        self._held: dict[str, list[_Held]] = {}
        self._held_count = 0
        state.on_settings_changed(self._apply_settings)

    def _make_answers(self) -> SendAnswers:
        config = self._config
        return SendAnswers(self._store_host, config.region_id, config.trace_on)

    def _apply_settings(self) -> None:
        self._answers = self._make_answers()

    def batch_handlers(self) -> Mapping[int, BatchHandler]:
        return dict.fromkeys(SEND_CODES, self.handle)

    @property
    def held_count(self) -> int:
        """Sends that wait for the creation of their topics."""
        return self._held_count

    def handle(self, batches: Sequence[Batch]) -> None:
        """All sends of one loop turn. After TURN_MESSAGES_MAX those of further connections wait for the
        next turns, and later ones behind them.
        """
        if self._later:
            self._later += batches
            return
        status = PutStatus.PUT_OK
        if not self._log.is_writable():
            status = PutStatus.SERVICE_NOT_AVAILABLE
        elif self._pending_bytes > self._pending_bytes_max:
            status = PutStatus.OS_PAGE_CACHE_BUSY
        turn = Turn()
        self._put_this_turn = 0
        for number, (connection, requests) in enumerate(batches, start=1):
            if status is PutStatus.PUT_OK:
                turn = self._admit_requests(connection, requests, turn)
            else:
                self._refuse(((connection, request) for request in requests), status)
                self._put_this_turn += len(requests)
            if self._put_this_turn + len(turn.messages) >= TURN_MESSAGES_MAX and number < len(batches):
                self._later += batches[number:]
                asyncio.get_running_loop().call_soon(self._continue)
                break
        self._put(turn)

    def _continue(self) -> None:
        later, self._later = self._later, []
        self.handle(later)

    def _admit_requests(self, connection: Connection, requests: list[RemotingCommand], turn: Turn) -> Turn:
        """Admit, hold or refuse the sends of one connection; the turn that the next ones belong to."""
        at, end = 0, len(requests)
        while at < end:
            count = self._admit_plain(connection, requests, at, turn)
            at += count
            if len(turn.messages) >= self._put_max:
                self._put(turn)
                turn = Turn()
            elif at < end:
                turn = self._parse_and_admit(connection, requests[at], turn)
                at += 1
        return turn

    def _admit_plain(
        self, connection: Connection, requests: list[RemotingCommand], first: int, turn: Turn
    ) -> int:
        """Admit the sends from `first` on that have no rule of their own; how many these are."""
        if self._held:
            return 0
        room = self._put_max - len(turn.messages)
        count, body_bytes = self._admission.admit_plain(
            requests, first, room, connection.born_host, turn.messages
        )
        if count:
            turn.parts.append(PlainRun(connection, requests, first, first + count))
            turn.body_bytes += body_bytes
        return count

    def _parse_and_admit(self, connection: Connection, request: RemotingCommand, turn: Turn) -> Turn:
        header: _Header
        try:
            if request.code == RequestCode.LEDGERMQ_SEND_SEQUENCED:
                header = SequencedSendRequestHeader.parse(request.ext_fields)
            else:
                header = send_header(request)
        except HeaderError as error:
            connection.warn_once("send header", f"request code {request.code}: {error}")
            self._answer_error(connection, request, ResponseCode.SYSTEM_ERROR, str(error))
            return turn
        return self._admit_or_hold((connection, request, header), turn)

    def _admit_or_hold(self, item: _Held, turn: Turn) -> Turn:
        """Admit, hold or refuse one send; the turn that the next one belongs to."""
        connection, request, header = item
        if self._held and header.topic in self._held:
            self._hold(item)
            return turn
        try:
            admitted = self._admit(header, request.body, connection.born_host)
        except RequestError as error:
            self._answer_error(connection, request, error.code, error.remark)
            return turn
        if isinstance(admitted, NeedsTopic):
            self._hold(item, admitted.config)
            return turn
        if turn.messages and len(turn.messages) + len(admitted.messages) > self._put_max:
            self._put(turn)
            turn = Turn()
        if isinstance(header, SequencedSendRequestHeader):
            self._add_sequenced(connection, request, header, admitted, turn)
        else:
            turn.add(SingleSend(connection, request, admitted))
        return turn

    def _admit(self, header: _Header, body: bytes, born_host: bytes) -> Admitted | NeedsTopic:
        if isinstance(header, SequencedSendRequestHeader):
            return self._sequenced_admission.admit(header, body, born_host)
        return self._admission.admit(header, body, born_host)

    def _add_sequenced(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: SequencedSendRequestHeader,
        admitted: Admitted,
        turn: Turn,
    ) -> None:
        """Add what is new of the send to the turn; answer, or let wait, what is not."""
        key, sequence = writer_key(header.writer_id, header.partition), header.sequence
        count = len(admitted.messages)
        digests = self._sequenced_admission.digests(header, request.body)
        try:
            verdict = self.sequencing.admit(key, header.batch_id, sequence, count, digests)
        except SequenceRefusedError as error:
            self._answer_error(connection, request, error.code, error.remark, error.ext_fields)
            return
        if verdict.flight is not None:
            del admitted.messages[: verdict.repeats]
            new = digests[1 + verdict.repeats :]
            stamp_sequences(admitted.messages, key, header.batch_id, sequence + verdict.repeats, new)
            turn.add(SequencedSend(connection, request, admitted, verdict.repeats))
            turn.flights.append(verdict.flight)
            return
        report = partial(self._answer_repeat, connection, request, count)
        if verdict.original is not None:
            verdict.original.waiting.append(report)
        else:
            report(verdict.status)

    def _answer_repeat(
        self, connection: Connection, request: RemotingCommand, count: int, status: PutStatus
    ) -> None:
        if status is not PutStatus.PUT_OK:
            self._refuse([(connection, request)], status)
        elif not request.flag & ONEWAY_FLAG:
            connection.send_bytes(self._answers.sequenced(request, -1, count))

    def _hold(self, item: _Held, to_create: TopicConfig | None = None) -> None:
        """Queue a send behind the others of its topic; the first one starts the topic's creation."""
        connection, request, header = item
        if self._held_count >= self._config.held_sends_max:
            remark = "too many sends wait for their topics' creation"
            self._answer_error(connection, request, ResponseCode.SYSTEM_BUSY, remark)
            return
        self._held.setdefault(header.topic, []).append(item)
        self._held_count += 1
        self._pending_bytes += len(request.body)
        if to_create is not None:
            self._spawn(self._create_topic(header.topic, to_create))

    async def _create_topic(self, topic: str, config: TopicConfig) -> None:
        status = PutStatus.UNKNOWN_ERROR
        try:
            await self._state.ensure_topic_config(config)
            status = PutStatus.PUT_OK
        except StateChangeError as error:
            status = error.status
        finally:
            self._release(topic, status)

    def _release(self, topic: str, status: PutStatus) -> None:
        items = self._held.pop(topic)
        self._held_count -= len(items)
        self._pending_bytes -= sum(len(request.body) for _, request, _ in items)
        if status is not PutStatus.PUT_OK:
            self._refuse([item[:2] for item in items], status)
            return
        turn = Turn()
        for item in items:
            turn = self._admit_or_hold(item, turn)
        self._put(turn)

    def _put(self, turn: Turn) -> None:
        if not turn.messages:
            return
        self._put_this_turn += len(turn.messages)
        result = self._log.put(turn.messages, partial(self._done, turn))
        turn.laid_out_s = perf_counter()
        if result.status is PutStatus.PUT_OK:
            turn.result = result
            self._pending_bytes += turn.body_bytes
        else:
            waiting = self.sequencing.take_back(turn.flights)
            self._refuse(turn.sends(), result.status)
            for report in waiting:
                report(result.status)

    def _done(self, turn: Turn, status: PutStatus) -> None:
        done_s = perf_counter()
        self._pending_bytes -= turn.body_bytes
        for flight in turn.flights:
            self.sequencing.finish(flight, status)
        if status is not PutStatus.PUT_OK:
            self._watch.failed(turn, status)
            self._refuse(turn.sends(), status)
            return
        result = turn.result
        assert result is not None, "a put was done before it returned"
        first = 0
        for part in turn.parts:
            if isinstance(part, PlainRun):
                frames, answers = self._answers.successes(part, result, first)
                if answers:
                    part.connection.send_bytes(frames, answers)
            elif not part.request.flag & ONEWAY_FLAG:
                part.connection.send_bytes(self._success(part, result, first))
            first += part.message_count
        self._watch.done(turn, done_s)

    def _success(self, part: SingleSend, result: PutResult, first: int) -> bytes:
        """The frame for a send whose first message is the result's number `first`."""
        admitted, queue_offset = part.admitted, result.queue_offsets[first]
        if isinstance(part, SequencedSend):
            return self._answers.sequenced(part.request, queue_offset, part.repeats)
        positions = result.positions[first : first + part.message_count]
        return self._answers.success(
            part.request,
            admitted.queue_id,
            admitted.unique_key,
            positions,
            queue_offset,
            admitted.recall_handle,
        )

    def _refuse(self, sends: Iterable[tuple[Connection, RemotingCommand]], status: PutStatus) -> None:
        code, remark = put_error(status)
        if status is PutStatus.SERVICE_NOT_AVAILABLE:
            # Nothing of these is stored: another node may store it.
            sends = [send for send in sends if not self._is_forwarded(*send)]
            hint = LEADER_REFUSES if self._log.is_writable() else self._readiness.leader_hint()
            remark = f"{remark}; {hint}"
        for connection, request in sends:
            self._answer_error(connection, request, code, remark)

    def _is_forwarded(self, connection: Connection, request: RemotingCommand) -> bool:
        """Begin to forward the send, if it may be."""
        has_room = self._forwarded_count < FORWARDS_MAX and self._pending_bytes <= self._pending_bytes_max
        is_possible = request.code in FORWARDED_CODES and not self._forwarder.leads_on()
        if not (has_room and is_possible and self._forwarder.may_forward(request)):
            return False
        self._forwarded_count += 1
        self._pending_bytes += len(request.body)
        self._spawn(self._forward(connection, request))
        return True

    async def _forward(self, connection: Connection, request: RemotingCommand) -> None:
        try:
            leader = await self._forwarder.find_leader(request, LEADER_PATIENCE_S)
            if leader is None:
                code, remark = put_error(PutStatus.SERVICE_NOT_AVAILABLE)
                hint = self._readiness.leader_hint()
                self._answer_error(connection, request, code, f"{remark}; {hint}")
                return
            answer = await self._forwarder.ask(leader, request, FORWARD_LIMIT_S)
        finally:
            self._forwarded_count -= 1
            self._pending_bytes -= len(request.body)
        if answer is None:
            # It may be stored: not the answer of a refusal, after which nothing is.
            self._answer_error(connection, request, *put_error(PutStatus.UNKNOWN_ERROR))
        elif not request.flag & ONEWAY_FLAG:
            answer.opaque, answer.flag = request.opaque, RESPONSE_FLAG
            answer.serialize_type = request.serialize_type
            connection.send(answer)

    def _answer_error(
        self,
        connection: Connection,
        request: RemotingCommand,
        code: int,
        remark: str,
        ext: Mapping[str, str] | None = None,
    ) -> None:
        self._statistics.puts_failed += 1
        self._counts.refuse(request.code, code)
        if not request.flag & ONEWAY_FLAG:
            connection.send_bytes(self._answers.error(request, code, remark, ext))
