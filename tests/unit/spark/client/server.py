"""A node on a real socket that answers as it is told, for the blocking client."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from remoting.command import RESPONSE_FLAG, FrameDecoder, RemotingCommand, decode_command, encode_command

Answer = Callable[[RemotingCommand], list[RemotingCommand | bytes | None]]
"""Commands and raw bytes to send; None closes the connection."""


def reply(request: RemotingCommand, code: int = 0, body: bytes = b"", **ext: str) -> RemotingCommand:
    return RemotingCommand(code, request.opaque, RESPONSE_FLAG, None, ext, body)


class Server:
    """Listens on a port of its own until `close`."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.requests: list[RemotingCommand] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open = [self._listener]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def address(self) -> str:
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def close(self) -> None:
        """Close everything and wait for the threads."""
        _close(self._listener)
        self._threads[0].join(5)  # from now on nothing is accepted
        for one in self._open:
            _close(one)
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        decoder = FrameDecoder()
        try:
            while data := connection.recv(1 << 16):
                for payload in decoder.feed(data):
                    self._act(connection, decode_command(payload))
        except OSError:
            return

    def _act(self, connection: socket.socket, request: RemotingCommand) -> None:
        self.requests.append(request)
        for item in self.answer(request):
            if item is None:
                connection.shutdown(socket.SHUT_RDWR)
            else:
                connection.sendall(item if isinstance(item, bytes) else encode_command(item))


def _close(one: socket.socket) -> None:
    with suppress(OSError):  # the peer may have closed it
        one.shutdown(socket.SHUT_RDWR)
    one.close()
