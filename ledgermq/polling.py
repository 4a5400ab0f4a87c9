"""Polls a cluster repeatedly, over persistent connections."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from ledgermq.calls import Call, sentence
from ledgermq.errors import UserError
from ledgermq.output import Json

if TYPE_CHECKING:
    from pydantic import BaseModel

    from admin_api.services import Services

GROUPS_SHOWN: Final = 20
PARTS: Final = ("cluster", "brokers", "groups")
_PATHS: Final = {
    "cluster": ("/cluster", None),
    "brokers": ("/brokers", {"pageSize": 1000}),
    "groups": ("/consumer-groups", {"sort": "lag", "descending": True, "pageSize": GROUPS_SHOWN}),
}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a cluster. A part that could not be read is missing, and `problems` has the reason."""

    parts: dict[str, Json]
    problems: tuple[str, ...]

    @property
    def is_partial(self) -> bool:
        """Whether a part is missing, or something of a part."""
        return bool(self.problems) or any(part.get("isPartial") for part in self.parts.values())

    @property
    def silent(self) -> dict[str, str]:
        """Nodes without an answer for some part, with the reason."""
        troubles = [trouble for part in self.parts.values() for trouble in part.get("problems") or ()]
        return {trouble["address"]: trouble["problem"] for trouble in troubles}


@contextmanager
def poller(call: Call) -> Iterator[Callable[[], Snapshot]]:
    """Yields a function that polls once. It never raises for what a broker or service does."""
    if call.admin is not None:
        yield _http_poller(call)
        return
    with asyncio.Runner() as runner:
        services = _Opened(call.namesrv)
        runner.run(services.open())
        try:
            yield lambda: runner.run(services.poll())
        finally:
            runner.run(services.close())


def _http_poller(call: Call) -> Callable[[], Snapshot]:
    from ledgermq.api_client import ApiClient

    assert call.admin is not None
    admin = call.admin

    def poll() -> Snapshot:
        client = ApiClient(admin, call.token)  # with time limits of its own: polling continues for days
        parts: dict[str, Json] = {}
        problems: dict[str, None] = {}
        for name in PARTS:
            path, query = _PATHS[name]
            try:
                parts[name] = client.call("GET", path, query)
            except UserError as error:
                problems[str(error)] = None
        return Snapshot(parts, tuple(problems))

    return poll


class _Opened:
    """The services of this process, while it polls."""

    def __init__(self, namesrv: str) -> None:
        self._namesrv = namesrv
        self._context: Any = None
        self._services: Services | None = None

    async def open(self) -> None:
        from admin_api.services import open_services
        from admin_api.settings import Settings

        self._context = open_services(Settings(namesrv=self._namesrv))
        self._services = await self._context.__aenter__()

    async def close(self) -> None:
        await self._context.__aexit__(None, None, None)

    async def poll(self) -> Snapshot:
        assert self._services is not None
        problems: dict[str, None] = {}
        asked = [self._part(ask(self._services), problems) for ask in (_cluster, _brokers, _groups)]
        found = await asyncio.gather(*asked)
        parts = {name: part for name, part in zip(PARTS, found, strict=True) if part is not None}
        return Snapshot(parts, tuple(problems))

    async def _part(self, asking: "Awaitable[BaseModel]", problems: dict[str, None]) -> Json | None:
        from admin_api.errors import ServiceError
        from admin_api.gateway import AskError

        try:
            part: Json = orjson.loads((await asking).model_dump_json(by_alias=True))
        except (AskError, ServiceError) as error:
            problems[sentence(error)] = None
            return None
        return part


def _cluster(services: "Services") -> "Awaitable[BaseModel]":
    return services.reader.read()


def _brokers(services: "Services") -> "Awaitable[BaseModel]":
    from admin_api.errors import PageWanted

    return services.brokers.find(PageWanted(size=1000))


def _groups(services: "Services") -> "Awaitable[BaseModel]":
    from admin_api.errors import PageWanted
    from admin_api.groups.overview import GroupSort
    from admin_api.groups.service import GroupQuery

    query = GroupQuery(sort=GroupSort.LAG, is_descending=True)
    return services.consumer_groups.find(query, PageWanted(size=GROUPS_SHOWN))
