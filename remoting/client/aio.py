"""The asyncio client: one connection per address, opened when needed and again after it closed; single tries
of requests, and routes of topics.

The broker uses it towards name servers; the admin API, the command line and tools use it towards both.
"""

import asyncio
from collections.abc import Callable, Container, Coroutine, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

from remoting.client.protocol import split_address
from remoting.client.routes import (
    DEFAULT_QUEUES_MAX,
    NameServers,
    Queue,
    Retry,
    RetryableError,
    RouteCache,
    name_server_addresses,
    publish_queues,
    read_route,
    retry_of,
    route_request,
)
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.connection import Connection
from remoting.errors import (
    ClientError,
    ConnectFailedError,
    ReadOnlyTopicError,
    RemotingClosedError,
    RemotingError,
    RequestTimeoutError,
)
from remoting.limits import CLIENT_LIMITS, RemotingLimits
from remoting.route import DEFAULT_TOPIC, PERM_WRITE, TopicRoute
from remoting.router import Handler, Inbox, Router
from remoting.tls import TlsLayer
from sockets.dialled import is_usable_transport, nothing_listens
from sockets.tls import TlsError

_CLOSE_GRACE_S = 1.0


if TYPE_CHECKING:
    from remoting.acl import Signer
    from remoting.client.tls import ClientTls
    from sockets.tls import TlsCredentials


class RemotingClient:
    """Sends requests to any number of addresses. Made and used on one running loop.

    A connection is closed when a request on it times out and nothing was received meanwhile: the peer's
    machine may be down, and the next request should find that out at once.

    `signer` signs each request for brokers whose access control is on. With `tls` all connections speak TLS.
    """

    def __init__(
        self,
        limits: RemotingLimits = CLIENT_LIMITS,
        signer: "Signer | None" = None,
        tls: "TlsCredentials | None" = None,
    ) -> None:
        self._limits = limits
        self._signer = signer
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._router = Router()
        self._inbox = Inbox(self._router)
        self._ids = count(1)
        self._connections: dict[str, Connection] = {}
        self._connecting: dict[str, asyncio.Task[Connection]] = {}
        self._open: dict[Connection, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._all_closed = asyncio.Event()
        self._is_closed = False

    @property
    def account(self) -> str | None:
        """The access key that requests are signed with; None: they are not signed."""
        return None if self._signer is None else self._signer.access_key

    async def invoke(self, address: str, command: RemotingCommand, timeout_s: float = 3.0) -> RemotingCommand:
        """Send a request to `host:port` and return the answer, whatever its code.

        The time-out covers connecting too. The command's opaque and flag are set here.

        Raises:
            ConnectFailedError: nothing was sent.
            RequestTimeoutError, RemotingClosedError: the peer may or may not have acted.
            PendingRequestsFullError: too many requests to this address wait; nothing was sent.
        """
        start_s = self._loop.time()
        connection = await self.connect(address, timeout_s)
        left_s = max(0.0, timeout_s - (self._loop.time() - start_s))
        return await self._send(connection, command, left_s).result()

    def send(self, address: str, command: RemotingCommand, timeout_s: float = 3.0) -> "SentRequest | None":
        """What `invoke` does, without waiting, over a connection that is open; None: nothing was sent."""
        connection = self._connections.get(address)
        if connection is None or not connection.is_open:
            return None
        try:
            return self._send(connection, command, timeout_s)
        except RemotingError:
            return None

    def _send(self, connection: Connection, command: RemotingCommand, timeout_s: float) -> "SentRequest":
        """Raises RemotingError: nothing was sent."""
        self.sign(command)
        return SentRequest(connection, connection.start_request(command, timeout_s), command.opaque)

    def sign(self, command: RemotingCommand) -> None:
        """Sign a request that is sent over a connection of this client without `invoke`."""
        if self._signer is not None:
            self._signer.sign(command)

    async def connect(self, address: str, timeout_s: float = 3.0) -> Connection:
        """Return the open connection to `host:port`, made now if there is none. Callers share one attempt.

        Raises:
            ConnectFailedError: refused, unreachable, not in time, or the address is no address.
            RemotingClosedError: the client is closed.
        """
        connection = self._connections.get(address)
        if connection is not None and connection.is_open:
            return connection
        if self._is_closed:
            raise RemotingClosedError("the client is closed")
        attempt = self._connecting.get(address)
        if attempt is None:
            attempt = self._loop.create_task(self._make_connection(address))
            self._connecting[address] = attempt
            attempt.add_done_callback(lambda done: self._end_attempt(address, done))
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(attempt)
        except TimeoutError:
            raise ConnectFailedError(f"{address}: no connection within {timeout_s} s") from None
        except asyncio.CancelledError:
            if attempt.cancelled():  # by `close`; otherwise the caller is the one who was cancelled
                raise RemotingClosedError("the client is closed") from None
            raise

    def on_request(self, handler: Handler) -> None:
        """Have `handler` answer every request that a peer sends us (a broker's 39, 40, 220, 307, 309 …)."""
        self._router.register_fallback(handler)

    async def close(self) -> None:
        """Close every connection, within 1 s; requests that wait fail with RemotingClosedError."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for attempt in tuple(self._connecting.values()):
            attempt.cancel()
        await asyncio.gather(*self._connecting.values(), return_exceptions=True)
        await self._router.close()
        for connection in tuple(self._open):
            connection.close()
        if self._open:
            try:
                async with asyncio.timeout(_CLOSE_GRACE_S):
                    await self._all_closed.wait()
            except TimeoutError:
                for connection in tuple(self._open):
                    connection.abort()

    async def _make_connection(self, address: str) -> Connection:
        host, port = split_address(address)
        tls = None if self._tls is None else _tls_layer(self._tls, address, host)
        connection = Connection(self, next(self._ids), self._limits, tls=tls)
        try:
            async with asyncio.timeout(self._limits.connect_timeout_ms / 1000):
                transport, _ = await self._loop.create_connection(lambda: connection, host, port)
                if not is_usable_transport(transport):
                    raise nothing_listens()
                await connection.secured()
            self._connections[address] = connection
        # TimeoutError is an OSError
        except (OSError, OverflowError, UnicodeError, RuntimeError, RemotingClosedError) as error:
            raise ConnectFailedError(f"{address}: {str(error) or type(error).__name__}") from None
        finally:
            # An attempt may be cancelled after `connection_made`; uvloop does not report that it closes it.
            if self._connections.get(address) is not connection:
                connection.abort()
        return connection

    def _end_attempt(self, address: str, attempt: asyncio.Task[Connection]) -> None:
        del self._connecting[address]
        if not attempt.cancelled():
            attempt.exception()  # read, so that asyncio does not report it when every caller has left

    # ConnectionOwner

    def connection_opened(self, connection: Connection) -> None:
        """ConnectionOwner: add it; the first one starts the timer that checks for idle connections."""
        self._open[connection] = None
        self._all_closed.clear()
        if self._timer is None:
            self._arm()

    def connection_closed(self, connection: Connection) -> None:
        """ConnectionOwner: remove it; the next request to its address connects again."""
        self._open.pop(connection, None)
        if not self._open:
            self._all_closed.set()
        for address, known in tuple(self._connections.items()):
            if known is connection:
                del self._connections[address]

    def requests_received(self, connection: Connection, requests: list[RemotingCommand], code: int) -> None:
        """ConnectionOwner: add requests of the peer to those of this turn."""
        self._inbox.add((connection, requests, code))

    def _arm(self) -> None:
        self._timer = self._loop.call_later(self._limits.check_interval_ms / 1000, self._check_connections)

    def _check_connections(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        for connection in tuple(self._open):
            connection.check(now_s)
        if self._open and not self._is_closed:
            self._arm()


class SentRequest:
    """A request that was sent. `answer`: the peer's, or how the request failed (Connection.start_request)."""

    __slots__ = ("_connection", "_opaque", "_sent_s", "answer")

    def __init__(self, connection: Connection, answer: asyncio.Future[RemotingCommand], opaque: int) -> None:
        self.answer = answer
        self._connection = connection
        self._opaque = opaque
        self._sent_s = asyncio.get_running_loop().time()

    async def result(self) -> RemotingCommand:
        """The answer. Raises as RemotingClient.invoke. Cancelling it drops the answer."""
        try:
            return await self.answer
        except RequestTimeoutError:
            if self._connection.last_received_s < self._sent_s:
                self._connection.abort()
            raise
        finally:
            self._connection.drop(self._opaque)

    def drop(self) -> None:
        """No one waits for the answer any more."""
        self._connection.drop(self._opaque)


async def ask_once(
    client: RemotingClient,
    address: str,
    request: RemotingCommand,
    accepted: Container[int] = (ResponseCode.SUCCESS,),
    timeout_s: float = 3.0,
) -> RemotingCommand:
    """One try of a request; the answer's code is one of `accepted`.

    Raises:
        RetryableError: no answer, or a refusal that may pass.
        ClientError: the node refused for good.
    """
    try:
        answer = await client.invoke(address, request, timeout_s)
    except RemotingError as error:
        raise RetryableError(str(error)) from error
    if answer.code in accepted:
        return answer
    name = RequestCode(request.code).name
    problem = f"{address} answered code {answer.code} to {name}: {answer.remark or 'no remark'}"
    if retry_of(answer) is Retry.NONE:
        raise ClientError(problem)
    raise RetryableError(problem)


def _tls_layer(tls: "TlsCredentials", address: str, host: str) -> TlsLayer:
    """Raises ConnectFailedError."""
    try:
        return TlsLayer(None, tls.stream(host))
    except TlsError as error:
        raise ConnectFailedError(f"{address}: no TLS: {error}") from None


def client_from(environment: Mapping[str, str], tls: "ClientTls | None" = None) -> RemotingClient:
    """A client, on the running loop, with the account and the TLS that the environment names; `tls` has
    precedence.

    Raises: AclError, TlsFilesError.
    """
    from remoting.acl import signer_from
    from remoting.client.tls import client_tls_from

    tls = tls or client_tls_from(environment)
    return RemotingClient(signer=signer_from(environment), tls=None if tls is None else tls.credentials())


class RouteTable:
    """Routes of topics, from the first name server that answers. Made and used on one running loop.

    namesrv: `host:port`, several of them separated by `;`.
    start_task: starts the requests, each shared by all callers that want the same topic meanwhile.
    """

    def __init__(
        self,
        client: RemotingClient,
        namesrv: str,
        timeout_s: float = 3.0,
        start_task: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]] = asyncio.create_task,
    ) -> None:
        self._client = client
        self._name_servers = NameServers(name_server_addresses(namesrv))
        self._timeout_s = timeout_s
        self._start_task = start_task
        self._publish: RouteCache[list[Queue]] = RouteCache()
        self._requests: dict[str, asyncio.Task[TopicRoute | None]] = {}

    async def publish_queues(self, topic: str) -> list[Queue]:
        """The queues that accept messages; of a topic that does not exist, those it will have. They are
        cached until `invalidate`. May be empty.

        Raises:
            ReadOnlyTopicError: no broker has the permission to write to the topic.
            ClientError: no name server gave a usable answer.
        """
        known = self._publish.get(topic)
        if known is None:
            known = await self._request_publish_queues(topic)
            if known:
                self._publish.put(topic, known)
        return known

    async def _request_publish_queues(self, topic: str) -> list[Queue]:
        route = await self.request(topic)
        if route is not None:
            if route.queue_datas and not any(data.perm & PERM_WRITE for data in route.queue_datas):
                raise ReadOnlyTopicError(f"no broker has the permission to write to the topic {topic}")
            return publish_queues(route)
        default = await self.request(DEFAULT_TOPIC)
        if default is None:
            return []
        return [queue for queue in publish_queues(default) if queue.queue_id < DEFAULT_QUEUES_MAX]

    def invalidate(self, topic: str) -> None:
        """The topic's route is requested again at its next use."""
        self._publish.invalidate(topic)

    async def request(self, topic: str) -> TopicRoute | None:
        """The topic's route now; None when no name server that answers knows the topic.

        Raises:
            ClientError: no name server gave a usable answer.
        """
        request = self._requests.get(topic)
        if request is None:
            request = self._start_task(self._request(topic))
            self._requests[topic] = request
            request.add_done_callback(lambda done: self._end_request(topic, done))
        return await asyncio.shield(request)

    def _end_request(self, topic: str, request: asyncio.Task[TopicRoute | None]) -> None:
        del self._requests[topic]
        if not request.cancelled():
            request.exception()  # read, so that asyncio does not report it when every caller has left

    async def _request(self, topic: str) -> TopicRoute | None:
        loop = asyncio.get_running_loop()
        problem: ClientError | None = None
        is_unknown = False
        for address in self._name_servers.to_ask(loop.time()):
            try:
                answer = await self._client.invoke(address, route_request(topic), self._timeout_s)
            except RemotingError as error:
                self._name_servers.failed(address, loop.time())
                problem = ClientError(f"the name server gives no answer ({error})")
                continue
            self._name_servers.answered(address)
            try:
                route = read_route(answer, topic)
            except ClientError as error:
                problem = error
                continue
            if route is not None:
                return route
            is_unknown = True
        if problem is not None and not is_unknown:
            raise problem
        return None
