"""What the parts of one client share: its connections, the routes of its topics, requests that follow a
broker's leader, and its registration at the brokers (RocketMQ's MQClientInstance).
"""

import asyncio
import logging
import os
import random
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Coroutine, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self, TypedDict

import orjson

from ledgermq.client.errors import (
    AccessDeniedError,
    ClosedError,
    MessagingError,
    NotSentError,
    RefusedError,
    TopicNotFoundError,
    UncertainError,
)
from remoting.acl import Signer
from remoting.client.aio import RemotingClient, RouteTable
from remoting.client.routes import Backoff, Leaders, Retry, RouteCache, leaders_of, retry_of
from remoting.client.tls import ClientTls
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.connection import Connection
from remoting.errors import (
    ClientError,
    ConnectFailedError,
    PendingRequestsFullError,
    RemotingError,
)
from remoting.headers.consume import UnregisterClientRequestHeader
from remoting.headers.fields import RequestHeader
from remoting.route import TopicRoute
from remoting.router import HandlerResult
from sockets.tls import TlsCredentials

ROUTE_VALID_S: Final = 30.0
"""A route is asked for again after this, and at once when an answer or a failure says that it is outdated."""
MISSING_S: Final = 35.0
"""So long a route is used that no name server knows any more."""
BEAT_S: Final = 30.0
BEAT_LIMIT_S: Final = 3.0
UNCERTAIN_TRIES: Final = 3
"""Tries of a request for a topic that does not exist: a new leader may not know it for a moment."""
CLOSE_LIMIT_S: Final = 3.0
_PAUSE_MIN_S: Final = 0.01
_PAUSE_MAX_S: Final = 0.3
_SUCCESS: Final = frozenset({ResponseCode.SUCCESS})
_NOTHING_SENT: Final = (ConnectFailedError, PendingRequestsFullError)

logger = logging.getLogger(__name__)
Answering = Callable[[RemotingCommand, Connection], HandlerResult]


class ConnectionOptions(TypedDict, total=False):
    """How every client connects; all are optional.

    access_key, secret_key: the account of brokers with access control.
    tls: None is plain text.
    request_timeout_s: one try of a request that the broker does not hold.
    client_name: in the client id instead of the process: host@name@number.
    """

    access_key: str
    secret_key: str
    security_token: str
    tls: ClientTls
    request_timeout_s: float
    client_name: str


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def _make_client(signer: Signer | None, tls: TlsCredentials | None) -> RemotingClient:
    return RemotingClient(signer=signer, tls=tls)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The wall clock, the random numbers and the connections of a client; simulations have their own."""

    now_ms: Callable[[], int] = _wall_clock_ms
    rng: random.Random = field(default_factory=random.SystemRandom)
    make_client: Callable[[Signer | None, TlsCredentials | None], RemotingClient] = _make_client


@dataclass(frozen=True, slots=True)
class Answer:
    """A broker's answer. `may_be_repeated`: an earlier try may have been carried out, its answer was lost."""

    command: RemotingCommand
    tries: int
    may_be_repeated: bool


class Tries:
    """The tries of one request until `end_s` (the loop's clock): what is known of those that failed."""

    def __init__(self, what: str, end_s: float, now_s: float) -> None:
        self._what = what
        self._loop = asyncio.get_running_loop()
        self._end_s = end_s
        self._backoff = Backoff(end_s - now_s, now_s, _PAUSE_MIN_S, _PAUSE_MAX_S)
        self.may_be_done = False

    @property
    def count(self) -> int:
        """Of the try under way, from 1."""
        return self._backoff.tries + 1

    def left_s(self, most_s: float) -> float:
        return max(0.0, min(most_s, self._end_s - self._loop.time()))

    async def unanswered(self, error: RemotingError) -> None:
        """Wait for the next try. Raises NotSentError, UncertainError when no time is left."""
        self.may_be_done = self.may_be_done or not isinstance(error, _NOTHING_SENT)
        await self._pause(str(error), None)

    async def unroutable(self, error: MessagingError) -> None:
        """No broker to ask is known. Raises it when no time is left."""
        await self._pause(str(error), error)

    async def refused(self, answer: RemotingCommand, address: str, *, may_pass: bool = False) -> None:
        """Wait for the next try where it may help; `may_pass`: it does. Raises RefusedError."""
        refusal = refusal_of(answer, self._what, address)
        retry = Retry.SAME_NODE if may_pass else retry_of(answer)
        is_unknown = answer.code == ResponseCode.TOPIC_NOT_EXIST and self.count >= UNCERTAIN_TRIES
        if retry is Retry.NONE or is_unknown:
            raise self._honest(refusal)
        # Of a request that a broker took and could not finish, it does not know what becomes of it.
        self.may_be_done = self.may_be_done or answer.code == ResponseCode.SYSTEM_ERROR
        await self._pause(str(refusal), refusal)

    async def _pause(self, reason: str, refusal: MessagingError | None) -> None:
        now_s = self._loop.time()
        pause_s = self._backoff.failed(reason, now_s)
        if pause_s is not None:
            await asyncio.sleep(pause_s)
            return
        words = f"{self._what}: {self._backoff.summary(now_s)}"
        if self.may_be_done:
            raise UncertainError(words)
        raise refusal or NotSentError(words)

    def _honest(self, refusal: RefusedError) -> MessagingError:
        """A refusal after a try that may have been carried out does not say that nothing was done."""
        return UncertainError(str(refusal)) if self.may_be_done else refusal


def refusal_of(answer: RemotingCommand, what: str, address: str) -> RefusedError:
    """The error for an answer that is a refusal."""
    remark = answer.remark or "no remark"
    kind = RefusedError
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        kind = TopicNotFoundError
    elif answer.code == ResponseCode.NO_PERMISSION or (
        answer.code == ResponseCode.SYSTEM_ERROR and retry_of(answer) is Retry.NONE
    ):
        kind = AccessDeniedError
    return kind(f"{what}: {address} refuses it with code {answer.code}: {remark}", answer.code, remark)


class Client(ABC):
    """What all clients have in common: one session from `start` to `close`, which `async with` calls."""

    _session: "Session | None" = None

    @abstractmethod
    async def start(self) -> None:
        """Raises ClosedError when it was started before; TlsFilesError."""

    @abstractmethod
    async def close(self) -> None:
        """No task and no connection is left."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _open_session(
        self, namesrv: str, options: ConnectionOptions, surroundings: Surroundings
    ) -> "Session":
        """The session. Raises ClosedError, TlsFilesError."""
        if self._session is not None:
            raise ClosedError("a client is started once")
        self._session = Session(namesrv, options, surroundings)
        return self._session

    def _running(self) -> "Session":
        """Raises ClosedError."""
        if self._session is None or self._session.is_closed:
            raise ClosedError("the client is closed" if self._session else "the client is not started")
        return self._session


class Session:
    """Made and used on one running loop; closed once.

    namesrv: `host:port` of the name server, several of them separated by `;`.
    """

    def __init__(
        self, namesrv: str, options: ConnectionOptions, surroundings: Surroundings | None = None
    ) -> None:
        self.surroundings = surroundings or Surroundings()
        self._loop = asyncio.get_running_loop()
        tls = options.get("tls")
        credentials = None if tls is None else tls.credentials()
        self.client = self.surroundings.make_client(_signer(options), credentials)
        self.client.on_request(self._answer)
        self.request_timeout_s = options.get("request_timeout_s", 3.0)
        self.client_id = client_id(options.get("client_name"), self.surroundings.rng)
        self._routes = RouteTable(self.client, namesrv, start_task=self.spawn)
        self._known: RouteCache[TopicRoute] = RouteCache(ROUTE_VALID_S)
        self._leaders = Leaders()
        self._confirmed_s: dict[str, float] = {}
        self._outdated: set[str] = set()
        self._leaderless: set[str] = set()
        self._nodes: dict[str, dict[int, str]] = {}
        self._answering: dict[int, Answering] = {}
        self._members: list[Callable[[], Mapping[str, Any]]] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._beaten: set[str] = set()
        self._is_closed = False

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run it until it ends or the session closes; a failure is logged."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or task.exception() is None or isinstance(task.exception(), ClientError):
            return
        logger.error("a part of the client failed", exc_info=task.exception())

    async def close(self) -> None:
        """Take the client off the brokers and close its connections; no task is left."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            async with asyncio.timeout(CLOSE_LIMIT_S):
                await self._unregister()
        except (TimeoutError, ClientError, RemotingError) as error:
            logger.debug("the brokers do not know that %s ends: %s", self.client_id, error)
        finally:
            tasks = tuple(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.client.close()

    # -- routes

    async def route(self, topic: str, *, is_fresh: bool = False) -> TopicRoute | None:
        """Where the topic's queues are; None where no name server knows the topic.

        Raises NotSentError: no name server answers, and no route is known from before.
        """
        if not is_fresh and (known := self.known_route(topic)) is not None:
            return known
        self._check_open()
        try:
            found = await self._routes.request(topic)
        except ClientError as error:
            outdated = self._known.outdated(topic)
            if outdated is None:
                raise NotSentError(f"no route of the topic {topic}: {error}") from error
            return outdated
        now_s = self._loop.time()
        if found is None:
            # Brokers register again within this time with a name server that was restarted, and is empty.
            if now_s - self._confirmed_s.get(topic, -MISSING_S) < MISSING_S:
                return self._known.outdated(topic)
            self._known.invalidate(topic)
            return None
        self._known.put(topic, found, now_s)
        self._confirmed_s[topic] = now_s
        self._outdated.discard(topic)
        leaders = leaders_of(found.broker_datas)
        self._leaders.learn(leaders)
        for broker in found.broker_datas:
            self._nodes[broker.broker_name] = dict(broker.broker_addrs)
            self._leaderless.add(broker.broker_name)
        self._leaderless -= leaders.keys()
        return found

    def known_route(self, topic: str) -> TopicRoute | None:
        """As `route`, when no one has to be asked."""
        return None if topic in self._outdated else self._known.get(topic, self._loop.time())

    @property
    def has_all_leaders(self) -> bool:
        """Whether each broker of the known routes has a leader, as far as it is known."""
        return not self._leaderless

    def leader(self, broker_name: str) -> str | None:
        """The address that takes its requests, as far as it is known."""
        return self._leaders.get(broker_name)

    def name_at(self, address: str) -> str | None:
        """The broker that has a node at this address, as far as it is known."""
        return next((name for name, nodes in self._nodes.items() if address in nodes.values()), None)

    def failed(self, broker_name: str, topic: str) -> None:
        """Its leader did not answer, or is none: the next request asks for the route again."""
        self._leaders.failed(broker_name)
        self._leaderless.add(broker_name)
        self._outdated.add(topic)

    # -- requests

    def command(self, code: RequestCode, header: RequestHeader, body: bytes = b"") -> RemotingCommand:
        return RemotingCommand(code, ext_fields=header.ext_fields(), body=body)

    async def ask(
        self,
        broker_name: str,
        topic: str,
        command: RemotingCommand,
        *,
        limit_s: float,
        accepted: Container[int] = _SUCCESS,
        try_s: float | None = None,
        may_follow: bool = False,
    ) -> Answer:
        """The answer of the broker's leader, with one of the accepted codes. `topic`'s route names it.

        limit_s: for all tries. try_s: for one; more than a broker may hold the request.
        may_follow: any node may answer while there is no leader.

        Raises NotSentError, UncertainError, RefusedError.
        """
        self._check_open()
        now_s = self._loop.time()
        what = f"{RequestCode(command.code).name} of {topic}"
        tries = Tries(what, now_s + limit_s, now_s)
        while True:
            try:
                address = await self._find_node(broker_name, topic, may_follow=may_follow)
            except MessagingError as error:
                await tries.unroutable(error)
                continue
            try:
                most_s = tries.left_s(try_s or self.request_timeout_s)
                answer = await self.client.invoke(address, command, most_s)
            except RemotingError as error:
                self._check_open()
                self.failed(broker_name, topic)
                await tries.unanswered(error)
                continue
            if answer.code in accepted:
                return Answer(answer, tries.count, tries.may_be_done)
            if retry_of(answer) in (Retry.NEW_LEADER, Retry.UNCERTAIN):
                self.failed(broker_name, topic)
            await tries.refused(answer, address)

    async def _find_node(self, broker_name: str, topic: str, *, may_follow: bool) -> str:
        """Raises NotSentError."""
        if may_follow and self._leaders.get(broker_name) is None:
            await self.route(topic, is_fresh=True)
            nodes = sorted(self._nodes.get(broker_name, {}).values())
            if nodes and self._leaders.get(broker_name) is None:
                return self.surroundings.rng.choice(nodes)
        return await self.find_leader(broker_name, topic)

    async def find_leader(self, broker_name: str, topic: str) -> str:
        """Raises NotSentError."""
        address = self._leaders.get(broker_name)
        if address is None:
            await self.route(topic, is_fresh=True)
            address = self._leaders.get(broker_name) or self._leaders.former(broker_name)
        if address is None:
            raise NotSentError(f"{broker_name} has no leader now")
        return address

    # -- registration

    def answer(self, code: RequestCode, handler: Answering) -> None:
        """Have `handler` answer the brokers' requests of this code."""
        self._answering[code] = handler

    def _answer(self, request: RemotingCommand, connection: Connection) -> HandlerResult:
        handler = self._answering.get(request.code)
        if handler is not None:
            return handler(request, connection)
        remark = f"{self.client_id} does not know the request {request.code}"
        return RemotingCommand(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)

    async def join(self, member: Callable[[], Mapping[str, Any]]) -> None:
        """Register a producer or consumer at all brokers of the known routes, now and every 30 s. `member`
        gives its part of the heartbeat: `producerDataSet` or `consumerDataSet`.

        Raises AccessDeniedError.
        """
        is_first = not self._members
        self._members.append(member)
        await self.beat()
        if is_first:
            self.spawn(self._stay_registered())

    def leave(self, member: Callable[[], Mapping[str, Any]]) -> None:
        self._members.remove(member)

    async def _stay_registered(self) -> None:
        """A broker that is new in a route hears of the client at once: it needs the subscription."""
        next_s = self._loop.time() + BEAT_S
        while True:
            await asyncio.sleep(1.0)
            now_s = self._loop.time()
            if now_s >= next_s or self._addresses() - self._beaten:
                next_s = now_s + BEAT_S
                try:
                    await self.beat()
                except AccessDeniedError as error:
                    logger.warning("%s", error)

    def _addresses(self) -> set[str]:
        return {address for nodes in self._nodes.values() for address in nodes.values()}

    async def beat(self) -> None:
        """Raises AccessDeniedError."""
        body: dict[str, Any] = {"clientID": self.client_id, "producerDataSet": [], "consumerDataSet": []}
        for member in self._members:
            for name, rows in member().items():
                body[name] += rows
        data = orjson.dumps(body)
        addresses = self._addresses()
        answers = await asyncio.gather(*(self._beat(address, data) for address in sorted(addresses)))
        self._beaten = {address for address, answer in zip(sorted(addresses), answers, strict=True) if answer}
        for answer in answers:
            if answer is not None and answer.code == ResponseCode.NO_PERMISSION:
                raise refusal_of(answer, "HEART_BEAT", "a broker")

    async def _beat(self, address: str, data: bytes) -> RemotingCommand | None:
        try:
            return await self.client.invoke(
                address, RemotingCommand(RequestCode.HEART_BEAT, body=data), BEAT_LIMIT_S
            )
        except RemotingError as error:
            logger.debug("%s does not take a heartbeat: %s", address, error)
            return None

    async def _unregister(self) -> None:
        groups = [
            (row["groupName"], name == "producerDataSet")
            for member in self._members
            for name, rows in member().items()
            for row in rows
        ]
        requests = []
        for group, is_producer in groups:
            header = UnregisterClientRequestHeader(
                self.client_id, group if is_producer else "", "" if is_producer else group
            )
            command = self.command(RequestCode.UNREGISTER_CLIENT, header)
            requests += [self.client.invoke(at, command, CLOSE_LIMIT_S) for at in sorted(self._beaten)]
        await asyncio.gather(*requests, return_exceptions=True)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def _check_open(self) -> None:
        """Raises ClosedError."""
        if self._is_closed:
            raise ClosedError("the client is closed")


def client_id(name: str | None, rng: random.Random) -> str:
    """Unlike that of any other client: brokers know a client by it."""
    return f"{socket.gethostname()}@{name or os.getpid()}@{rng.getrandbits(40):010x}"


def _signer(options: ConnectionOptions) -> Signer | None:
    access_key, secret_key = options.get("access_key"), options.get("secret_key")
    if access_key is None or secret_key is None:
        return None
    return Signer(access_key, secret_key, options.get("security_token"))
