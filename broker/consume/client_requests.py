"""Clients: heartbeats (34), unregistration (35), the members of a consumer group (38), notices to consumers
(40) and the check of a consumer's settings (46).
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable
from typing import Final

import orjson

from broker.background import Spawn
from broker.config import BrokerConfig
from broker.consume.clients import (
    Client,
    ClientConnection,
    ClientRegistry,
    RegistryFullError,
    rebalance_notice,
)
from broker.consume.filters import property_filter_refused
from broker.consume.heartbeats import (
    Heartbeat,
    HeartbeatError,
    Subscription,
    parse_client_config,
    parse_heartbeat,
)
from broker.sql92.filters import SqlFilters
from broker.state.groups import SubscriptionGroupConfig
from broker.state.state import ReplicatedState, StateChangeError
from broker.state.topics import retry_topic
from commitlog.log import MessageLog
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, success_response
from remoting.errors import RequestError
from remoting.headers.consume import ConsumerGroupRequestHeader, UnregisterClientRequestHeader
from remoting.router import HandlerResult, Handlers, Router
from remoting.slices import Steps
from remoting.tag_filters import FilterError, is_tag_type
from remoting.topic_names import RETRY_PREFIX, topic_name_error

EXPIRY_INTERVAL_S = 10.0
"""How often clients without heartbeats are dropped."""

GROUPS_AT_ONCE_MAX: Final = 50
"""New groups of a heartbeat that are created in one turn of the loop."""

logger = logging.getLogger(__name__)


class ClientProcessor:
    """Keeps the registry of clients, and notifies a group's consumers when its members or subscriptions
    change.
    """

    def __init__(
        self,
        config: BrokerConfig,
        log: MessageLog,
        state: ReplicatedState,
        clients: ClientRegistry,
        now_ms: Callable[[], int],
        spawn: Spawn,
        sql_filters: SqlFilters,
        router: Router,
    ) -> None:
        self._config = config
        self._router = router
        self._log = log
        self._spawn = spawn
        self._sql_filters = sql_filters
        self._clients = clients
        self._state = state
        self._now_ms = now_ms
        """A wall clock that is set ahead would make all clients silent ones."""
        self._timer: asyncio.TimerHandle | None = None
        self._to_notify: OrderedDict[str, None] = OrderedDict()
        """Groups that have changed, and whose consumers get their notices in the next turns."""
        self._is_notifying = False
        log.on_writable_change(self.on_writable_change)

    def handlers(self) -> Handlers:
        return {
            RequestCode.HEART_BEAT: self.heart_beat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.list_consumers,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_config,
        }

    def heart_beat(self, request: RemotingCommand, connection: ClientConnection) -> HandlerResult:
        """34: register the client; on the leader the answer waits for what its groups still lack."""
        heartbeat = _parse(request.body)
        client = Client(heartbeat.client_id, connection, request.language, request.version)
        steps = self._clients.beat(client, heartbeat, self._now_ms())
        registered = self._router.in_slices(steps, connection.remote_host)
        if registered.done():
            return self._registered(request, heartbeat, _changed(registered))
        return self._register_later(request, heartbeat, registered)

    async def _register_later(
        self, request: RemotingCommand, heartbeat: Heartbeat, registered: asyncio.Future[set[str]]
    ) -> RemotingCommand:
        await asyncio.wait([registered])
        answer = self._registered(request, heartbeat, _changed(registered))
        return answer if isinstance(answer, RemotingCommand) else await answer

    def _registered(
        self, request: RemotingCommand, heartbeat: Heartbeat, changed: set[str]
    ) -> RemotingCommand | Coroutine[None, None, RemotingCommand]:
        self._notify(changed)
        incomplete = self._incomplete(beat.group for beat in heartbeat.consumers)
        if not incomplete or not self._log.is_writable():
            return success_response(request)
        return self._complete_and_answer(request, incomplete)

    def unregister(self, request: RemotingCommand, connection: ClientConnection) -> RemotingCommand:
        """35."""
        header = UnregisterClientRequestHeader.parse(request.ext_fields)
        self._notify(self._clients.unregister(header.client_id, header.producer_group, header.consumer_group))
        return success_response(request)

    def list_consumers(self, request: RemotingCommand, connection: ClientConnection) -> RemotingCommand:
        """38. A group without consumers is an error, as in Java: an empty list would make clients drop all
        queues.
        """
        group = ConsumerGroupRequestHeader.parse(request.ext_fields).consumer_group
        client_ids = self._clients.consumer_ids(group)
        if not client_ids:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
        return success_response(request, body=orjson.dumps({"consumerIdList": client_ids}))

    def check_config(self, request: RemotingCommand, connection: ClientConnection) -> RemotingCommand:
        """46: whether the broker can serve a consumer's subscription."""
        try:
            group, subscription = parse_client_config(request.body)
            if not is_tag_type(subscription.expression_type):
                self._check_property_filter(group, subscription)
        except FilterError as error:
            raise RequestError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error
        except HeartbeatError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        return success_response(request)

    def _check_property_filter(self, group: str, subscription: Subscription) -> None:
        """Raises RequestError while such filters are not enabled, FilterError for one that cannot be read."""
        if not self._config.enable_property_filter:
            remark = property_filter_refused(subscription.expression_type)
            raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
        expression = subscription.expression
        found = self._sql_filters.filter_for(subscription.expression_type, expression)
        if rest := expression[found.end :].strip():
            logger.warning(
                "group %s, topic %s: the filter ends before %.60r, which is ignored as RocketMQ ignores it",
                group,
                subscription.topic,
                rest,
            )

    def connection_closed(self, connection: ClientConnection) -> None:
        """Remove the clients of a closed connection at once: the Go client never unregisters."""
        self._router.in_slices(self._leave(connection), connection.remote_host)

    def _leave(self, connection: ClientConnection) -> Steps[None]:
        self._notify((yield from self._clients.connection_closed(connection.connection_id)))

    def on_writable_change(self, is_writable: bool) -> None:
        """What heartbeats asked of this node as a follower is made up for when it leads."""
        if is_writable:
            self._router.in_slices(self._make_up(), "")

    def _make_up(self) -> Steps[None]:
        incomplete: list[str] = []
        for name in list(self._clients.consumer_groups):
            incomplete += self._incomplete([name])
            yield
        if incomplete:
            self._spawn(self._complete(incomplete))

    def expire(self) -> None:
        """Drop silent clients and close the connections without heartbeats."""
        self._router.in_slices(self._expire(), "")
        self._arm()

    def _expire(self) -> Steps[None]:
        changed, silent = yield from self._clients.expire(self._now_ms())
        self._notify(changed)
        for connection in silent:
            connection.close()
            yield

    async def start(self) -> None:
        self._arm()

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(EXPIRY_INTERVAL_S, self.expire)

    def _notify(self, groups: Iterable[str]) -> None:
        """40: each consumer of the groups balances its queues again now, not in 20 s."""
        self._to_notify.update(dict.fromkeys(sorted(groups)))
        if self._to_notify and not self._is_notifying:
            self._is_notifying = True
            self._router.in_slices(self._send_notices(), "")

    def _send_notices(self) -> Steps[None]:
        # In steps: one heartbeat may change a thousand groups, each with consumers on all connections. A
        # group that changes once more before its turn gets one notice.
        try:
            while self._to_notify:
                name, _ = self._to_notify.popitem(last=False)
                for connection in self._consumers_of(name):
                    connection.send_oneway(rebalance_notice(name))
                    yield
                yield
        finally:
            self._is_notifying = False

    def _consumers_of(self, name: str) -> list[ClientConnection]:
        """Each connection that takes notices of a group, once."""
        group = self._clients.consumer_groups.get(name)
        config = self._state.groups.get(name)
        if group is None or group.is_broadcasting:
            return []
        if config is not None and not config.notify_consumer_ids_changed_enable:
            return []
        connections = [member.client.connection for member in group.members.values()]
        return list({each.connection_id: each for each in connections}.values())

    def _incomplete(self, groups: Iterable[str]) -> list[str]:
        return [name for name in groups if not self._is_complete(name)]

    def _is_complete(self, name: str) -> bool:
        config = self._state.groups.get(name)
        if config is None:
            return False
        return not _has_retry_topic(config) or RETRY_PREFIX + name in self._state.topics

    async def _complete_and_answer(self, request: RemotingCommand, groups: list[str]) -> RemotingCommand:
        await self._complete(groups)
        return success_response(request)

    async def _complete(self, groups: list[str]) -> None:
        """Create the groups and their retry topics. What fails is tried again with the next heartbeat."""
        for first in range(0, len(groups), GROUPS_AT_ONCE_MAX):
            part = groups[first : first + GROUPS_AT_ONCE_MAX]
            results = await asyncio.gather(*map(self._complete_group, part), return_exceptions=True)
            for name, result in zip(part, results, strict=True):
                if isinstance(result, StateChangeError):
                    logger.info("group %s is not complete yet: %s", name, result)
                elif isinstance(result, BaseException):
                    raise result

    async def _complete_group(self, name: str) -> None:
        config = await self._state.ensure_group(name)
        if config is not None and _has_retry_topic(config):
            await self._state.ensure_topic_config(retry_topic(name, config.retry_queue_nums))


def _has_retry_topic(config: SubscriptionGroupConfig) -> bool:
    """Not when the group wants none, nor when its name is too long for a topic's."""
    return config.retry_queue_nums > 0 and topic_name_error(RETRY_PREFIX + config.name) is None


def _changed(registered: asyncio.Future[set[str]]) -> set[str]:
    """Raises RequestError: the heartbeat was refused."""
    try:
        return registered.result()
    except RegistryFullError as error:
        raise RequestError(ResponseCode.SYSTEM_BUSY, str(error)) from error


def _parse(body: bytes) -> Heartbeat:
    try:
        return parse_heartbeat(body)
    except HeartbeatError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"heartbeat refused: {error}") from error
