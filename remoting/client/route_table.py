"""Routes of topics and single tries of requests, for programs with an event loop."""

import asyncio
from collections.abc import Callable, Container, Coroutine
from typing import Any

from remoting.client.aio import RemotingClient
from remoting.client.retry import Retry, RetryableError, retry_of
from remoting.client.routes import (
    DEFAULT_QUEUES_MAX,
    NameServers,
    Queue,
    RouteCache,
    name_server_addresses,
    publish_queues,
    read_route,
    route_request,
)
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import (
    ClientError,
    RemotingError,
)
from remoting.route import DEFAULT_TOPIC, TopicRoute


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
