"""Asks the name server and every broker, each within a time and all within a number at once."""

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Protocol

from pydantic import ValidationError

from admin_api.assemble import Answer, Listed, assemble
from admin_api.memory import Memory
from admin_api.schemas import ClusterView, NamesrvView, NodeState
from admin_api.settings import Settings
from broker.admin_types import NodeStatusMessage
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import ConnectFailedError, RemotingError
from remoting.route import RouteError, parse_cluster_info

_STATUS_BYTES_MAX = 1024 * 1024


class Invoker(Protocol):
    """What is needed of `remoting.client.RemotingClient`."""

    async def invoke(
        self, address: str, command: RemotingCommand, timeout_s: float = ...
    ) -> RemotingCommand: ...


class ClusterReader:
    """Reads the cluster on demand and remembers what it saw; it runs nothing of its own."""

    def __init__(self, client: Invoker, settings: Settings, now_ms: Callable[[], int] | None = None) -> None:
        self._client = client
        self._settings = settings
        self._now_ms = now_ms or _unix_ms
        self._asking = asyncio.Semaphore(settings.asks_in_flight_max)
        self._memory = Memory(settings.nodes_max)
        self._listed: tuple[Listed, ...] = ()

    async def read(self) -> ClusterView:
        """One look at everything. Never raises for what a broker or the name server does or fails to do."""
        now_ms = self._now_ms()
        namesrv = await self._read_namesrv()
        answers: dict[str, Answer] = {}
        await self._ask_all({entry.address for entry in self._listed} | self._memory.addresses(), answers)
        await self._ask_all(_peer_addresses(answers.values()), answers)
        for answer in answers.values():
            if answer.status is not None:
                self._memory.remember(answer.status, now_ms)
        return assemble(namesrv, self._listed, answers, self._memory, now_ms)

    async def _read_namesrv(self) -> NamesrvView:
        """Refreshes the list of brokers; without an answer the one known before stays in use."""
        address = self._settings.namesrv
        try:
            body = await self._ask(address, RequestCode.GET_BROKER_CLUSTER_INFO)
            self._listed = parse_listed(body, self._settings.nodes_max)
        except AskError as error:
            return NamesrvView(address=address, state=NodeState.DOWN, problem=str(error))
        return NamesrvView(address=address, state=NodeState.UP)

    async def _ask_all(self, addresses: Iterable[str], answers: dict[str, Answer]) -> None:
        new = sorted(set(addresses) - answers.keys())[: self._settings.nodes_max]
        for answer in await asyncio.gather(*map(self._ask_node, new)):
            answers[answer.address] = answer

    async def _ask_node(self, address: str) -> Answer:
        try:
            body = await self._ask(address, RequestCode.LEDGERMQ_NODE_STATUS)
            return Answer(address, parse_node_status(body))
        except AskError as error:
            return Answer(address, None, str(error))

    async def _ask(self, address: str, code: RequestCode) -> bytes:
        """Raises: AskError, with a sentence for people."""
        timeout_s = self._settings.ask_timeout_ms / 1000
        async with self._asking:
            try:
                answer = await self._client.invoke(address, RemotingCommand(code=code), timeout_s=timeout_s)
            except ConnectFailedError as error:
                raise AskError(f"{address} cannot be reached{_os_reason(error)}") from error
            except RemotingError as error:
                raise AskError(str(error)) from error
        if answer.code != ResponseCode.SUCCESS:
            raise AskError(f"{address} answered code {answer.code}: {answer.remark or 'no remark'}")
        return answer.body


class AskError(Exception):
    """One name server or broker gave no usable answer."""


def _unix_ms() -> int:
    return time.time_ns() // 1_000_000


def _os_reason(error: ConnectFailedError) -> str:
    """`: Connection refused` and the like, in the system's own words."""
    cause = error.__context__
    return f": {os.strerror(cause.errno)}" if isinstance(cause, OSError) and cause.errno else ""


def _peer_addresses(answers: Iterable[Answer]) -> set[str]:
    statuses = [answer.status for answer in answers if answer.status is not None]
    return {peer.remoting_address for status in statuses for peer in status.peers if peer.remoting_address}


def parse_node_status(body: bytes) -> NodeStatusMessage:
    """Raises: AskError when the body is too long or is no node status."""
    if len(body) > _STATUS_BYTES_MAX:
        raise AskError(f"its status has {len(body)} bytes, {_STATUS_BYTES_MAX} are allowed")
    try:
        return NodeStatusMessage.from_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "body"
        raise AskError(f"its status cannot be read: {where}: {first['msg']}") from error


def parse_listed(body: bytes, brokers_max: int) -> tuple[Listed, ...]:
    """The first `brokers_max` addresses in an answer to GET_BROKER_CLUSTER_INFO.

    Raises: AskError.
    """
    try:
        info = parse_cluster_info(body)
    except RouteError as error:
        raise AskError(f"its list of brokers cannot be read: {error}") from error
    listed = (
        Listed(broker.cluster, broker.broker_name, broker_id, address)
        for broker in info.brokers.values()
        for broker_id, address in broker.broker_addrs.items()
    )
    return tuple(islice(listed, brokers_max))
