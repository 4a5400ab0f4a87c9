"""How the process listens: uvicorn with its own limits, and event streams that end at a stop.

uvicorn bounds the size of a request's head, refuses requests while too many connections are open, and closes
connections that are idle between two requests. It has no time-out for a head, a body or a TLS handshake that
never ends, nor for a client that does not read its answer: where strangers can connect, a reverse proxy in
front has to (docs/admin.md).
"""

import socket
from dataclasses import replace
from typing import Any, Final

import uvicorn

from admin_api.app import AdminApp
from admin_api.settings import Settings
from remoting.limits import raise_limit, room

HEAD_BYTES_MAX: Final = 32 * 1024
"""Of a request line with its headers: the longest cursor fits (`admin_api.messages.window`), twice."""
EVENT_STREAMS_SHARE: Final = 5
"""At most one connection in this many may be an event stream, where few connections are possible."""
BACKLOG_MAX: Final = 128
"""Connections that the system completes before they are accepted."""
_DRAIN_S: Final = 2


def server_config(app: AdminApp, settings: Settings, backlog: int, **options: Any) -> uvicorn.Config:
    """uvicorn's configuration with the limits of `settings`; `options` are uvicorn's (address, TLS)."""
    return uvicorn.Config(
        app,
        http="h11",  # named: otherwise httptools is used where it is installed, which ignores the next option
        h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        ws="none",
        timeout_keep_alive=max(1, settings.keep_alive_ms // 1000),
        timeout_graceful_shutdown=_DRAIN_S,
        # uvicorn counts the connection of the request itself.
        limit_concurrency=settings.connections_max + 1,
        backlog=backlog,
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        **options,
    )


def fit_to_open_files(settings: Settings) -> tuple[Settings, int]:
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
    """Ends the event streams before it waits for open requests: they never end by themselves."""

    def __init__(self, config: uvicorn.Config, app: AdminApp) -> None:
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.state.feed.close()
        await super().shutdown(sockets)
