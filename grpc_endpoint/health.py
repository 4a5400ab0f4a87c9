"""Whether the endpoint serves, as load balancers ask it (grpc.health.v1): it does while it knows a leader of
every broker, and no more once it has begun to stop.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from grpc_endpoint.brokers import Brokers
from grpc_endpoint.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_endpoint.status import StatusError

HEALTH_SERVICE: Final = "grpc.health.v1.Health"
CHECK_S: Final = 5.0
"""Between two checks of a watch."""
WATCHES_MAX: Final = 1_000
_Status = HealthCheckResponse.ServingStatus


class UnknownServiceError(Exception):
    """There is no service of that name."""


class Health:
    """`services`: the names that may be asked for, besides the empty one for the whole server."""

    def __init__(self, brokers: Brokers, services: frozenset[str]) -> None:
        self._brokers = brokers
        self._services = services | {""}
        self._is_stopping = asyncio.Event()
        self._watches = 0

    def stop(self) -> None:
        """Say from now on that the endpoint does not serve."""
        self._is_stopping.set()

    async def check(self, request: HealthCheckRequest) -> HealthCheckResponse:
        """Raises UnknownServiceError."""
        if request.service not in self._services:
            raise UnknownServiceError(request.service[:80])
        return HealthCheckResponse(status=await self._status())

    async def watch(self, request: HealthCheckRequest) -> AsyncIterator[HealthCheckResponse]:
        """The status now and whenever it changes, until the endpoint stops or the caller goes."""
        if request.service not in self._services or self._watches >= WATCHES_MAX:
            is_known = request.service in self._services
            yield HealthCheckResponse(status=_Status.UNKNOWN if is_known else _Status.SERVICE_UNKNOWN)
            return
        self._watches += 1
        try:
            said: _Status | None = None
            while said is None or not self._is_stopping.is_set():
                status = await self._status()
                if status != said:
                    said = status
                    yield HealthCheckResponse(status=status)
                await self._pause()
            if said != _Status.NOT_SERVING:
                yield HealthCheckResponse(status=_Status.NOT_SERVING)
        finally:
            self._watches -= 1

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(CHECK_S):
                await self._is_stopping.wait()
        except TimeoutError:
            return

    async def _status(self) -> _Status:
        if self._is_stopping.is_set():
            return _Status.NOT_SERVING
        try:
            info = await self._brokers.cluster(is_fresh=True)
        except StatusError:
            return _Status.NOT_SERVING
        leaders = [broker.master_addr for broker in info.brokers.values()]
        return _Status.SERVING if leaders and all(leaders) else _Status.NOT_SERVING
