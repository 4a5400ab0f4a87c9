"""`python -m admin_api --namesrv 127.0.0.1:9876 --port 8080` serves the admin interface until SIGTERM."""

import argparse
import socket
import sys

import uvicorn

from admin_api.app import AdminApp, create_app
from admin_api.settings import Settings

_DRAIN_S = 2


class _Server(uvicorn.Server):
    """Ends the event streams first, since they never end by themselves."""

    def __init__(self, config: uvicorn.Config, app: AdminApp) -> None:
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.state.feed.close()
        await super().shutdown(sockets)


def main() -> int:
    """Exit code 0 after a stop, 1 when the port cannot be had."""
    parser = argparse.ArgumentParser(prog="python -m admin_api", description=__doc__)
    parser.add_argument("--namesrv", required=True, metavar="HOST:PORT", help="the name server to ask")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default %(default)s)")
    parser.add_argument("--port", type=int, default=8080, help="the port to listen on (default %(default)s)")
    args = parser.parse_args()
    app = create_app(Settings(namesrv=args.namesrv))
    config = uvicorn.Config(
        app,
        host=args.host,
        port=args.port,
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=500,
        proxy_headers=False,
        timeout_graceful_shutdown=_DRAIN_S,
    )
    try:
        listener = config.bind_socket()
    except SystemExit:
        print(f"cannot listen on {args.host}:{args.port}; is the port in use?", file=sys.stderr)
        return 1
    _Server(config, app).run(sockets=[listener])
    return 0


if __name__ == "__main__":
    sys.exit(main())
