"""How the process listens: uvicorn with one parser, and every connection bounded in number and in time.

uvicorn's own limit refuses requests and goes on taking connections, and its only time-out is for a connection
between two requests. Here a client that never ends its TLS handshake, its head, or its body, or does not
read what it asked for, loses the connection; and where all are taken, the one that has waited longest for a
request makes room.
"""

import asyncio
import socket
import ssl
from dataclasses import replace
from enum import Enum, auto
from functools import partial
from typing import Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from admin_api.app import AdminApp
from admin_api.settings import Settings
from admin_api.tls_door import TlsDoor, Waiting, make_room
from remoting.descriptors import raise_limit, room

HEAD_BYTES_MAX: Final = 32 * 1024
"""Of a request's line and headers: the longest cursor fits (`admin_api.messages.window`), twice."""
READ_BYTES_MIN: Final = 16 * 1024
"""What a client that lags behind takes at least in `write_stall_ms`."""
EVENT_STREAMS_SHARE: Final = 5
"""One connection in so many may be an event stream, where few are possible."""
BACKLOG_MAX: Final = 128
"""Connections that the system completes before they are accepted."""
_DRAIN_S: Final = 2


class Phase(Enum):
    """What a connection waits for. HEAD: of its first request, or one that has begun. BODY: the rest of the
    request. ANSWER: ours, or that the client takes it. IDLE: another request.
    """

    HEAD = auto()
    BODY = auto()
    ANSWER = auto()
    IDLE = auto()


class BoundedConfig(uvicorn.Config):
    """uvicorn's configuration with our limits, and the connections without a request, oldest first."""

    def __init__(self, app: AdminApp, settings: Settings, backlog: int, **where: Any) -> None:
        super().__init__(
            app,
            http=BoundedProtocol,
            ws="none",
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
            timeout_keep_alive=max(1, settings.keep_alive_ms // 1000),
            timeout_graceful_shutdown=_DRAIN_S,
            # Beyond the bound only while every connection has a request: what that one asks is refused.
            limit_concurrency=settings.connections_max + 1,
            backlog=backlog,
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            **where,
        )
        self.limits = settings
        self.waiting: dict[Waiting, None] = {}

    def load(self) -> None:
        """As uvicorn's, but TLS begins behind our own door."""
        super().load()
        context, self.ssl = self.ssl, None
        if context is not None:
            self.http_protocol_class = partial(_tls_door, context)  # type: ignore[assignment]  # only called


class BoundedProtocol(H11Protocol):
    """One connection."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        assert isinstance(config, BoundedConfig)
        super().__init__(config, server_state, app_state, _loop)
        self._limits = config.limits
        self._waiting = config.waiting
        self._phase = Phase.ANSWER
        self._deadline: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        make_room(self.connections, self._waiting, self._limits.connections_max)
        super().connection_made(transport)
        self._enter(Phase.HEAD)

    def connection_lost(self, exc: Exception | None) -> None:
        self._waiting.pop(self, None)
        for timer in (self._deadline, self._stall):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        # What is left of a body that was answered before its end begins no request.
        if self._phase is Phase.IDLE and self.conn.their_state is not h11.SEND_BODY:
            self._enter(Phase.HEAD)
        super().data_received(data)
        self._follow()

    def on_response_complete(self) -> None:
        # While much of it is still to be sent, nothing counts but how much the client takes.
        self._enter(Phase.ANSWER if self.flow.write_paused else Phase.IDLE)
        super().on_response_complete()
        self._follow()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()
        if self._phase is Phase.ANSWER and self.cycle.response_complete:
            self._enter(Phase.IDLE)

    def give_up(self) -> None:
        """Drops the connection with what is still to be sent; its request is told that the client left."""
        self._waiting.pop(self, None)
        self.transport.abort()

    def _follow(self) -> None:
        """Finds the phase after the parser has gone on; the request before is over where no new one began."""
        if self.cycle is None or self.cycle.response_complete or self.transport.is_closing():
            return
        phase = Phase.BODY if self.conn.their_state is h11.SEND_BODY else Phase.ANSWER
        if phase is not self._phase:
            self._enter(phase)

    def _enter(self, phase: Phase) -> None:
        self._phase = phase
        self._waiting.pop(self, None)
        if phase in (Phase.HEAD, Phase.IDLE):
            self._waiting[self] = None
        if self._deadline is not None:
            self._deadline.cancel()
        limit_ms = self._limit_ms(phase)
        self._deadline = None if limit_ms is None else self.loop.call_later(limit_ms / 1000, self.give_up)

    def _limit_ms(self, phase: Phase) -> int | None:
        limits = self._limits
        match phase:
            case Phase.HEAD:
                return limits.head_timeout_ms
            case Phase.BODY:
                return limits.body_timeout_ms
            case Phase.IDLE:
                # uvicorn closes it at the first; that ends nothing while the client does not take the rest.
                return limits.keep_alive_ms + limits.write_stall_ms
            case Phase.ANSWER:
                return None

    def _watch_reader(self, left_bytes: int) -> None:
        if self._stall is not None:
            self._stall.cancel()
        self._stall = self.loop.call_later(self._limits.write_stall_ms / 1000, self._judge_reader, left_bytes)

    def _judge_reader(self, before_bytes: int) -> None:
        left_bytes = self.transport.get_write_buffer_size()
        if before_bytes - left_bytes < READ_BYTES_MIN:
            self.give_up()
        else:
            self._watch_reader(left_bytes)


def _tls_door(
    context: ssl.SSLContext,
    *,
    config: BoundedConfig,
    server_state: ServerState,
    app_state: dict[str, Any],
    _loop: asyncio.AbstractEventLoop | None = None,
) -> TlsDoor:
    inside = partial(BoundedProtocol, config, server_state, app_state, _loop)
    return TlsDoor(inside, context, config.limits, server_state.connections, config.waiting)


def fitted(settings: Settings) -> tuple[Settings, int]:
    """The settings with no more connections than the process may open files for, and the backlog."""
    raise_limit()
    possible = room(settings.connections_max)
    connections_max = possible.connections_max
    streams_max = max(1, min(settings.watchers_max, connections_max // EVENT_STREAMS_SHARE))
    return (
        replace(settings, connections_max=connections_max, watchers_max=streams_max),
        min(possible.backlog, BACKLOG_MAX),
    )


class Server(uvicorn.Server):
    """Ends the event streams first, since they never end by themselves."""

    def __init__(self, config: BoundedConfig, app: AdminApp) -> None:
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.state.feed.close()
        await super().shutdown(sockets)
