"""PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361): how every consumer gets its messages.

A pull is checked once, then read: units, filter, one read of the log. With nothing to read it is held until a
message arrives (long polling). Only the writable leader's answer is final. Every other node serves what it
has applied, but never answers that an offset is out of range: the node itself may be behind, and the answer
would move the consumer back. Where a group was reset (broker/consume/offset_resets.py) any node sends it
there.

Which messages a pull wants says the expression in it, or its group's heartbeats. A pull may name a newer
version of the subscription than any heartbeat did. Java's consumer raises the version when its queues change,
and skips the heartbeat with the new version if another of its heartbeats is being sent: in 5.x both happen
1 s after its start, and the next heartbeat may be 30 s away. Such a pull gets messages of all tags, for every
client filters by tag itself; filtering by the older expression could skip messages that the newer one wants.
Only pulls with expressions over properties, which clients do not filter, wait for the heartbeat.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType

from broker.background import Spawn
from broker.config import BrokerConfig
from broker.consume.clients import ClientConnection, ClientRegistry, ConsumerGroup, rebalance_notice
from broker.consume.consumers import Consumers
from broker.consume.filters import MessageFilter, PropertyFilter, property_filter_refused
from broker.consume.heartbeats import Subscription, version_ms
from broker.consume.held_pulls import PullWaits
from broker.consume.long_polling import HeldPull
from broker.consume.nearest import NearestReplica
from broker.consume.queue_reader import QueueReader, ReadMetrics, ReadResult, ReadStatus, transfer_limits
from broker.consume.read_advice import LEADER_ID, ReadAdvice, machine_memory_bytes
from broker.consume.read_choice import (
    COMMITTED,
    ZONE_FIELD,
    Consistency,
    ReadChoice,
    age_ext,
    read_choice,
)
from broker.monitoring.statistics import BrokerStatistics
from broker.read_index import ReadIndex
from broker.sql92.filters import SqlFilter, SqlFilters
from broker.state.groups import SubscriptionGroupConfig
from broker.state.state import ReplicatedState, StateChangeError
from broker.state.topics import PERM_READ
from commitlog.errors import DamagedRecordError
from commitlog.log import MessageLog
from commitlog.record import get_property
from dledger.server import DLedgerServer
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, error_response, success_response
from remoting.errors import RequestError
from remoting.headers.consume import PullMessageRequestHeader
from remoting.router import HandlerResult, Handlers, Router
from remoting.slices import one_step
from remoting.tag_filters import MATCH_ALL, FilterError, is_tag_type, parse_tag_expression
from remoting.topic_names import RETRY_PREFIX

SYS_FLAG_COMMIT_OFFSET = 1
SYS_FLAG_SUSPEND = 2
SYS_FLAG_SUBSCRIPTION = 4
"""The pull has its own expression: C++ clients always set it, Java and Go clients on request."""
BEYOND_MAX = 10_000
"""Pulls beyond the end of their queues that wait for one round of the group, which confirms the leader."""
SUSPEND_MAX_MS = 60_000
"""Clients ask for 15 or 20 s, and wait 30 s for the answer."""
FOLLOWER_TOO_SMALL_SUSPEND_MS = 1_000
"""How long a follower keeps a pull below its first message: the leader may still have the messages that were
deleted here, but a client without a route to the leader would pull again at once.
"""
TOO_MANY_HELD = "[OVERLOAD]too many pulls are held, or the node stops"
"""Remark of SYSTEM_BUSY, after which clients pull again in 1 to 3 s."""
BEING_REPAIRED = "[REPAIR]a message is damaged on this node's disk and is being repaired"
"""Also a remark of SYSTEM_BUSY."""
_PARSE_FAILED = "parse the consumer's subscription failed"
_NO_FILTER_DATA = "The broker's consumer filter data is not exist!Your expression may be wrong!"
_PROPERTY_RETRY_TOPIC = b"RETRY_TOPIC"

_FINAL_CODES = {
    ReadStatus.FOUND: ResponseCode.SUCCESS,
    ReadStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
_FOLLOWER_CODES = _FINAL_CODES | {
    ReadStatus.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_RETRY_IMMEDIATELY,
}
_KEEPS_ASKED_OFFSET = frozenset(
    {ReadStatus.NO_MESSAGE_IN_QUEUE, ReadStatus.OFFSET_OVERFLOW_BADLY, ReadStatus.OFFSET_TOO_SMALL}
)
"""On a follower: answered with the offset that was asked for."""
_BEYOND = frozenset({ReadStatus.NO_MESSAGE_IN_QUEUE, ReadStatus.OFFSET_OVERFLOW_BADLY})
"""A consumer that is moved back reads messages again."""
_NOTHING_MORE: Mapping[str, str] = MappingProxyType({})


@dataclass(slots=True)
class Pull:
    """A pull that passed all checks. `suspend_ms` is 0 when it may not be held."""

    request: RemotingCommand
    connection: ClientConnection
    header: PullMessageRequestHeader
    filter: MessageFilter
    suspend_ms: int
    choice: ReadChoice = COMMITTED
    zone: str = ""


class PullMessageProcessor:
    """Checks pulls, answers them or has them held."""

    def __init__(
        self,
        config: BrokerConfig,
        log: MessageLog,
        engine: DLedgerServer | None,
        state: ReplicatedState,
        router: Router,
        now_ms: Callable[[], int],
        statistics: BrokerStatistics,
        reads: ReadMetrics,
        consumers: Consumers,
        read_index: ReadIndex,
        nearest: NearestReplica,
        spawn: Spawn,
    ) -> None:
        self._router = router
        self._read_index = read_index
        self._spawn = spawn
        self._statistics = statistics
        self._running_groups = consumers.running_groups
        self._config = config
        self._log = log
        self._state = state
        self._commits = consumers.commits
        self._subscriptions = PullSubscriptions(consumers.clients, consumers.sql_filters, config)
        self._now_ms = now_ms
        self._reader = QueueReader(log, transfer_limits(config, log), reads)
        self._advice = ReadAdvice(self._config, log, engine, self._now_ms, machine_memory_bytes(), nearest)
        self.held: PullWaits[Pull] = PullWaits(log, self._resume, self._refuse, self._now_ms)
        self._beyond: list[tuple[Pull, int, int | None]] | None = None if engine is None else []
        """Pulls beyond the end of their queues, which wait for a round of the group."""
        self._resets = consumers.resets
        self._resets.on_mark(self.held.wake_queue)

    def handlers(self) -> Handlers:
        return {
            RequestCode.PULL_MESSAGE: self.handle,
            RequestCode.LITE_PULL_MESSAGE: self.handle,
        }

    def handle(self, request: RemotingCommand, connection: ClientConnection) -> HandlerResult:
        """11 and 361. Nothing is read for a closed connection, which was perhaps closed because too many
        answers were unread.
        """
        if not connection.is_open:
            return None
        header = PullMessageRequestHeader.parse(request.ext_fields)
        group = self._state.groups.get(header.consumer_group)
        if group is None:
            return self._handle_new_group(request, connection, header)
        choice = read_choice(request.ext_fields, self._state.topics.get(header.topic))
        if choice is not COMMITTED:
            return self._handle_chosen(request, connection, header, group, choice)
        return self._handle_checked(request, connection, header, group)

    def connection_closed(self, connection: ClientConnection) -> None:
        self.held.drop_connection(connection.connection_id)

    async def _handle_new_group(
        self, request: RemotingCommand, connection: ClientConnection, header: PullMessageRequestHeader
    ) -> RemotingCommand | None:
        """The group is created if it may be. Where it cannot be created now, on a follower or while the disk
        is full, it is served as a group with default values: reading needs no write.
        """
        try:
            group = await self._state.ensure_group(header.consumer_group)
        except StateChangeError:
            group = SubscriptionGroupConfig(header.consumer_group)
        if group is None:
            remark = f"subscription group [{header.consumer_group}] does not exist"
            raise RequestError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        choice = read_choice(request.ext_fields, self._state.topics.get(header.topic))
        return await self._handle_chosen(request, connection, header, group, choice)

    async def _handle_chosen(
        self,
        request: RemotingCommand,
        connection: ClientConnection,
        header: PullMessageRequestHeader,
        group: SubscriptionGroupConfig,
        choice: ReadChoice,
    ) -> RemotingCommand | None:
        """Raises RequestError when this node cannot give what the pull asks for."""
        if (refusal := await self._unfit(request, header.queue_offset, choice)) is not None:
            return refusal
        # All pulls of a round, or of a new group, waited for it, and go on in the same turn.
        checked = partial(self._handle_checked, request, connection, header, group, choice)
        return await self._router.in_slices(one_step(checked), connection.remote_host)

    async def _unfit(
        self, request: RemotingCommand, offset: int, choice: ReadChoice
    ) -> RemotingCommand | None:
        """None once this node may answer; or the answer that sends the client to the leader, at the same
        offset. Raises RequestError.
        """
        if choice.consistency is Consistency.LINEARIZABLE:
            await self._read_index.confirm()
        elif choice.consistency is Consistency.FOLLOWER:
            age_ms = await self._read_index.age_ms(choice.max_age_ms)
            if not choice.accepts(age_ms):
                result = ReadResult(ReadStatus.NO_MATCHED_MESSAGE, offset, 0, 0)
                ext = age_ext(age_ms)
                return _response(request, ResponseCode.PULL_RETRY_IMMEDIATELY, result, LEADER_ID, ext)
        return None

    def _handle_checked(
        self,
        request: RemotingCommand,
        connection: ClientConnection,
        header: PullMessageRequestHeader,
        group: SubscriptionGroupConfig,
        choice: ReadChoice = COMMITTED,
    ) -> RemotingCommand | None:
        self._check(header, group)
        wanted = self._subscriptions.wanted_by(header, group, connection)
        self._running_groups.pulled(header.consumer_group)
        counts = header.sys_flag & SYS_FLAG_COMMIT_OFFSET and header.commit_offset >= 0
        if self._resets:
            key = header.consumer_group, header.topic, header.queue_id
            counts = counts and not self._resets.keeps_out(*key, header.commit_offset, self._now_ms())
            if (moved := self._moved(request, header, header.queue_offset)) is not None:
                return moved
        if counts and self._log.is_writable():
            self._commits.note(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        suspend_ms = 0 if request.is_oneway else self._suspend_ms(header)
        zone = request.ext_fields.get(ZONE_FIELD, "")
        pull = Pull(request, connection, header, wanted, suspend_ms, choice, zone)
        return self._answer(pull, header.queue_offset, None)

    def _check(self, header: PullMessageRequestHeader, group: SubscriptionGroupConfig) -> None:
        """PullMessageProcessor's checks, in its order. Raises RequestError."""
        if not self._config.broker_permission & PERM_READ:
            remark = f"the broker[{self._config.broker_ip}] pulling message is forbidden"
            raise RequestError(ResponseCode.NO_PERMISSION, remark)
        if not group.consume_enable:
            remark = f"subscription group no permission, {header.consumer_group}"
            raise RequestError(ResponseCode.NO_PERMISSION, remark)
        topic = self._state.topics.get(header.topic)
        if topic is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please!"
            )
        if not topic.perm & PERM_READ:
            remark = f"the topic[{header.topic}] pulling message is forbidden"
            raise RequestError(ResponseCode.NO_PERMISSION, remark)
        if not 0 <= header.queue_id < topic.read_queue_nums:
            remark = (
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}]"
            )
            raise RequestError(ResponseCode.INVALID_PARAMETER, remark)

    def _suspend_ms(self, header: PullMessageRequestHeader) -> int:
        if not header.sys_flag & SYS_FLAG_SUSPEND:
            return 0
        if not self._config.long_polling_enable:
            return self._config.short_polling_time_ms
        return max(0, min(header.suspend_timeout_ms, SUSPEND_MAX_MS))

    def _answer(
        self, pull: Pull, offset: int, deadline_ms: int | None, is_confirmed: bool | None = None
    ) -> RemotingCommand | None:
        """The answer, or None when the pull is held, or its answer comes later. `offset` is where reading
        begins; with a deadline the pull was held before and may be held again until then. `is_confirmed`:
        what a round of the group said of this leader, None before one.
        """
        header = pull.header
        began_ms = self._now_ms()
        try:
            result = self._reader.read(
                header.topic, header.queue_id, offset, pull.filter, header.max_msg_nums, header.max_msg_bytes
            )
        except DamagedRecordError:
            return error_response(pull.request, ResponseCode.SYSTEM_BUSY, BEING_REPAIRED)
        if result.status is ReadStatus.FOUND:
            self._count(header, result, began_ms)
            return self._respond(pull, ResponseCode.SUCCESS, result)
        if deadline_ms is not None and self._waits_on(pull, result, deadline_ms):
            return None
        is_leader = self._log.is_writable()
        is_beyond = (
            result.status in _BEYOND and _code(result, offset, is_leader) is ResponseCode.PULL_OFFSET_MOVED
        )
        if is_beyond and is_confirmed is None and self._beyond is not None:
            return self._confirm_first(pull, offset, deadline_ms, self._beyond)
        # A leader that was cut off does not know what others have shown since.
        is_final = is_leader and (self._log.shows_all_committed() if is_confirmed is None else is_confirmed)
        return self._conclude(pull, result, offset, deadline_ms, is_final)

    def _conclude(
        self, pull: Pull, result: ReadResult, offset: int, deadline_ms: int | None, is_final: bool
    ) -> RemotingCommand | None:
        """To a pull for which there is no message. `is_final`: this node knows where the queue ends."""
        code = _code(result, offset, is_final)
        suspend_ms = _suspend_ms(pull, result, code, is_final)
        if suspend_ms:
            if deadline_ms is None:
                deadline_ms = self._now_ms() + suspend_ms
            if self._hold(pull, offset, deadline_ms):
                return None
            return error_response(pull.request, ResponseCode.SYSTEM_BUSY, TOO_MANY_HELD)
        if not is_final and result.status in _KEEPS_ASKED_OFFSET:
            result = ReadResult(result.status, offset, result.min_offset, result.max_offset)
        if is_final and result.status in _BEYOND and pull.header.topic in self._state.deleted_at:
            # Of the topic that was deleted: the consumer has nothing yet of the one made again.
            result = replace(result, next_offset=result.min_offset)
        return self._respond(pull, code, result)

    def _confirm_first(
        self, pull: Pull, offset: int, deadline_ms: int | None, waiting: list[tuple[Pull, int, int | None]]
    ) -> RemotingCommand | None:
        """A leader that was cut off, or whose machine was suspended together with its clocks, does not know
        what others have shown since: a round of the group precedes the answer that moves a consumer back.
        """
        if len(waiting) >= BEYOND_MAX:
            return error_response(pull.request, ResponseCode.SYSTEM_BUSY, TOO_MANY_HELD)
        waiting.append((pull, offset, deadline_ms))
        if len(waiting) == 1:
            self._spawn(self._answer_beyond(waiting))
        return None

    async def _answer_beyond(self, waiting: list[tuple[Pull, int, int | None]]) -> None:
        """One round for all that have come until it begins; the later ones get the next."""
        while waiting:
            asked = len(waiting)
            try:
                await self._read_index.confirm()
                is_confirmed = True
            except RequestError:
                is_confirmed = False
            for pull, offset, deadline_ms in waiting[:asked]:
                answer = None
                if pull.connection.is_open:
                    answer = self._answer(pull, offset, deadline_ms, is_confirmed)
                if answer is not None:
                    self._router.answer(pull.request, pull.connection, answer)
            del waiting[:asked]

    def _respond(self, pull: Pull, code: ResponseCode, result: ReadResult) -> RemotingCommand:
        """With the node to pull from next, and the age if the client accepts one."""
        header = pull.header
        next_id = None
        if self._advice.is_enabled:
            group = self._state.groups.get(header.consumer_group)
            queue = pull.connection.connection_id, header.topic, header.queue_id
            next_id = self._advice.near(pull.zone, group, queue)
            if next_id is None and result.status is ReadStatus.FOUND:
                next_id = self._advice.after(result.body, group)
        is_aged = pull.choice.consistency is Consistency.FOLLOWER
        ext = age_ext(self._read_index.known_age_ms) if is_aged else {}
        return _response(pull.request, code, result, next_id or LEADER_ID, ext)

    def _count(self, header: PullMessageRequestHeader, result: ReadResult, began_ms: int) -> None:
        self._statistics.got(
            header.topic,
            header.consumer_group,
            header.queue_id,
            result.count,
            len(result.body),
            self._now_ms() - began_ms,
        )

    def _moved(
        self, request: RemotingCommand, header: PullMessageRequestHeader, offset: int
    ) -> RemotingCommand | None:
        """The answer that sends a pull to its group's reset offset. None when the group was not reset, or the
        pull is at that offset.
        """
        key = header.consumer_group, header.topic, header.queue_id
        target = self._resets.send(*key, offset, self._now_ms())
        if target is None:
            return None
        queue = self._log.queues.get(header.topic, header.queue_id)
        first, end = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
        result = ReadResult(ReadStatus.OFFSET_RESET, target, first, end)
        return _response(request, ResponseCode.PULL_OFFSET_MOVED, result)

    def _waits_on(self, pull: Pull, result: ReadResult, deadline_ms: int) -> bool:
        """Whether a pull that was woken is held again behind what it does not want: the table knows the tags
        of new messages, but not their properties.
        """
        if result.status is not ReadStatus.NO_MATCHED_MESSAGE or result.next_offset < result.max_offset:
            return False
        return self._now_ms() < deadline_ms and self._hold(pull, result.next_offset, deadline_ms)

    def _hold(self, pull: Pull, offset: int, deadline_ms: int) -> bool:
        pull.request.ext_fields, pull.request.body = {}, b""  # its answer needs neither
        key = (pull.header.topic, pull.header.queue_id)
        return self.held.hold(
            HeldPull(key, offset, pull.filter, pull.connection.connection_id, deadline_ms, pull)
        )

    def _refuse(self, held: HeldPull[Pull]) -> None:
        """Its place is needed for a pull of another connection."""
        pull = held.request
        refusal = error_response(pull.request, ResponseCode.SYSTEM_BUSY, TOO_MANY_HELD)
        self._router.answer(pull.request, pull.connection, refusal)

    def _resume(self, held: HeldPull[Pull], may_hold: bool) -> None:
        pull = held.request
        if not pull.connection.is_open:
            return
        if not may_hold:
            pull.suspend_ms = 0
        if pull.choice is not COMMITTED:
            self._spawn(self._resume_chosen(held))
        else:
            self._resume_now(held)

    async def _resume_chosen(self, held: HeldPull[Pull]) -> None:
        """What held for the pull when it came holds for its answer, however long it was held."""
        pull = held.request
        try:
            unfit = await self._unfit(pull.request, held.offset, pull.choice)
        except RequestError as error:
            unfit = error_response(pull.request, error.code, error.remark)
        if unfit is None:
            self._resume_now(held)
        elif pull.connection.is_open:
            self._router.answer(pull.request, pull.connection, unfit)

    def _resume_now(self, held: HeldPull[Pull]) -> None:
        pull = held.request
        answer = self._moved(pull.request, pull.header, held.offset) if self._resets else None
        if answer is None:
            answer = self._answer(pull, held.offset, held.deadline_ms)
        if answer is not None:
            self._router.answer(pull.request, pull.connection, answer)


def _code(result: ReadResult, offset: int, is_final: bool) -> ResponseCode:
    if not is_final:
        return _FOLLOWER_CODES[result.status]
    if result.status is ReadStatus.NO_MESSAGE_IN_QUEUE:
        return ResponseCode.PULL_NOT_FOUND if offset == 0 else ResponseCode.PULL_OFFSET_MOVED
    return _FINAL_CODES[result.status]


def _suspend_ms(pull: Pull, result: ReadResult, code: ResponseCode, is_final: bool) -> int:
    """How long the pull is to be held; 0 = it is answered now."""
    if code is ResponseCode.PULL_NOT_FOUND:
        return pull.suspend_ms
    if not is_final and result.status is ReadStatus.OFFSET_TOO_SMALL:
        return min(pull.suspend_ms, FOLLOWER_TOO_SMALL_SUSPEND_MS)
    return 0


def _response(
    request: RemotingCommand,
    code: ResponseCode,
    result: ReadResult,
    next_id: str = LEADER_ID,
    more: Mapping[str, str] = _NOTHING_MORE,
) -> RemotingCommand:
    """All four header fields on every answer: the C++ client fails on a 19, 20 or 21 without them. `next_id`
    is the node to pull from next; with the leader's id, the client returns to the leader as soon as its route
    has one.
    """
    ext = {
        "suggestWhichBrokerId": next_id,
        "nextBeginOffset": str(result.next_offset),
        "minOffset": str(result.min_offset),
        "maxOffset": str(result.max_offset),
        **more,
    }
    return success_response(request, ext, result.body, result.status.value, code)


class PullSubscriptions:
    """The filters of pulls."""

    def __init__(self, clients: ClientRegistry, sql_filters: SqlFilters, config: BrokerConfig) -> None:
        self._clients = clients
        self._sql_filters = sql_filters
        self._config = config

    def wanted_by(
        self,
        header: PullMessageRequestHeader,
        group_config: SubscriptionGroupConfig,
        connection: ClientConnection,
    ) -> MessageFilter:
        """The filter of a pull. Raises RequestError as PullMessageProcessor does: 23, 24, 25, 16, 27, or 1
        for SQL92 while it is not enabled.
        """
        if header.sys_flag & SYS_FLAG_SUBSCRIPTION:
            return self._own_filter(header)
        group = self._group(header, group_config)
        subscription = _registered(group, header.topic)
        if subscription.version_ms < version_ms(header.sub_version):
            self._nudge(group, group_config, connection)
            return _filter_ahead(header, subscription)
        if is_tag_type(subscription.expression_type):
            if subscription.filter is None:
                raise RequestError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, _PARSE_FAILED)
            return subscription.filter
        try:
            wanted = self._sql_filters.filter_for(subscription.expression_type, subscription.expression)
        except FilterError as error:
            raise RequestError(ResponseCode.FILTER_DATA_NOT_EXIST, f"{_NO_FILTER_DATA} {error}") from error
        self._check_enabled(subscription.expression_type)
        return self._for_topic(header, wanted)

    def _group(
        self, header: PullMessageRequestHeader, group_config: SubscriptionGroupConfig
    ) -> ConsumerGroup:
        """The pull's group by its heartbeats. Raises RequestError."""
        group = self._clients.consumer_groups.get(header.consumer_group)
        if group is None:
            raise RequestError(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist")
        if group.is_broadcasting and not group_config.consume_broadcast_enable:
            remark = f"the consumer group[{header.consumer_group}] can not consume by broadcast way"
            raise RequestError(ResponseCode.NO_PERMISSION, remark)
        return group

    def _nudge(
        self, group: ConsumerGroup, config: SubscriptionGroupConfig, connection: ClientConnection
    ) -> None:
        """Have the client balance its queues: if these change, it sends the heartbeat that it left out."""
        if group.is_broadcasting or not config.notify_consumer_ids_changed_enable:
            return
        if self._clients.may_nudge(connection.connection_id):
            connection.send_oneway(rebalance_notice(group.name))

    def _own_filter(self, header: PullMessageRequestHeader) -> MessageFilter:
        is_tag = is_tag_type(header.expression_type)
        if not is_tag and header.subscription:
            self._check_enabled(header.expression_type)
        try:
            if is_tag:
                return parse_tag_expression(header.subscription)
            wanted = self._sql_filters.filter_for(header.expression_type, header.subscription)
            return self._for_topic(header, wanted)
        except FilterError as error:
            raise RequestError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"{_PARSE_FAILED}: {error}") from error

    def _check_enabled(self, expression_type: str | None) -> None:
        if not self._config.enable_property_filter:
            raise RequestError(ResponseCode.SYSTEM_ERROR, property_filter_refused(expression_type))

    def _for_topic(self, header: PullMessageRequestHeader, wanted: SqlFilter) -> MessageFilter:
        if not self._config.filter_support_retry or not header.topic.startswith(RETRY_PREFIX):
            return wanted
        group = header.consumer_group
        return RetryFilter(wanted.expression, lambda topic: self._filter_of(group, topic))

    def _filter_of(self, group_name: str, topic: str) -> SqlFilter | None:
        """What the group registered for a topic; None when that is no expression over properties."""
        group = self._clients.consumer_groups.get(group_name)
        subscription = group.subscriptions.get(topic) if group is not None else None
        if subscription is None or is_tag_type(subscription.expression_type):
            return None
        try:
            return self._sql_filters.filter_for(subscription.expression_type, subscription.expression)
        except FilterError:
            return None


def _registered(group: ConsumerGroup, topic: str) -> Subscription:
    """The group's subscription of the topic, from its heartbeats. Raises RequestError."""
    subscription = group.subscriptions.get(topic)
    if subscription is None:
        remark = f"the consumer's subscription of topic {topic} not exist"
        raise RequestError(ResponseCode.SUBSCRIPTION_NOT_EXIST, remark)
    return subscription


def _filter_ahead(header: PullMessageRequestHeader, subscription: Subscription) -> MessageFilter:
    """A filter for a pull whose subscription version no heartbeat has named yet: it selects at least every
    message that the pull wants. Go clients send the type TAG for every subscription, so the registered type
    is checked, too. Raises RequestError.
    """
    if is_tag_type(header.expression_type) and is_tag_type(subscription.expression_type):
        return MATCH_ALL
    raise RequestError(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")


@dataclass(frozen=True, slots=True)
class RetryFilter(PropertyFilter):
    """The filter of a retry topic (ExpressionForRetryMessageFilter): a message is wanted when the group's
    filter of its original topic selects it, or when the group has no such filter for that topic.
    """

    expression: str
    filter_of: Callable[[str], SqlFilter | None] = field(repr=False, compare=False)

    def wants(self, properties: bytes) -> bool:
        wanted = self._filter_for(properties)
        return wanted is None or wanted.wants(properties)

    def work_us(self, properties: bytes) -> int:
        wanted = self._filter_for(properties)
        return 4 if wanted is None else 4 + wanted.work_us(properties)

    def _filter_for(self, properties: bytes) -> SqlFilter | None:
        topic = get_property(properties, _PROPERTY_RETRY_TOPIC)
        return None if topic is None else self.filter_of(topic.decode(errors="replace"))
