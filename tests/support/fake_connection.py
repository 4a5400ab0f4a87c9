"""A client's connection as a processor sees it: what was answered is kept, decoded."""

from typing import Any, cast

from remoting.command import FrameDecoder, RemotingCommand, decode_command, encode_command
from remoting.connection import Connection
from remoting.errors import RemotingError, RequestTimeoutError
from remoting.quotas import Usage
from sockets.tls import PeerNames


class FakeConnection:
    """Answers in order of sending, as the client would read them."""

    def __init__(self, connection_id: int = 1, host: str = "127.0.0.1", port: int = 50000) -> None:
        self.connection_id = connection_id
        self.remote_host = host
        self.remote_port = port
        self.remote_address = f"{host}:{port}"
        self.born_host = bytes(map(int, host.split("."))) + port.to_bytes(4, "big")
        self.attributes: dict[str, Any] = {}
        self.peer_names = PeerNames()
        self.usage: Usage | None = None
        self.unanswered = 0
        self.unread = 0
        """Bytes in the kernel's buffer."""
        self.pauses_s: list[float] = []
        self.is_open = True
        self.is_congested = False
        self.answers: list[RemotingCommand] = []
        self.requests: list[RemotingCommand] = []
        """What the client was asked."""
        self.replies: list[RemotingCommand | RemotingError] = []
        """What it answers to the next ones; without one it is silent until the time is up."""
        self.warnings: list[str] = []

    def send(self, command: RemotingCommand) -> None:
        data = encode_command(command)
        if self.usage is not None:
            self.usage.answered(command.opaque, len(data))
        self._receive(data)

    async def request(self, command: RemotingCommand, timeout_s: float = 3.0) -> RemotingCommand:
        self.requests.append(command)
        reply = self.replies.pop(0) if self.replies else RequestTimeoutError("no answer in time")
        if isinstance(reply, RemotingError):
            raise reply
        return reply

    def send_oneway(self, command: RemotingCommand) -> None:
        command.flag = 2
        self._receive(encode_command(command))

    def send_bytes(self, data: bytes, answers: int = 1) -> None:
        before = len(self.answers)
        self._receive(data)
        assert len(self.answers) == before + answers, f"{answers} answers were promised"

    def _receive(self, data: bytes) -> None:
        self.answers += [decode_command(payload) for payload in FrameDecoder().feed(data)]

    @property
    def is_slowed(self) -> bool:
        return bool(self.pauses_s)

    def slow(self, pause_s: float) -> None:
        self.pauses_s.append(pause_s)

    def unread_bytes(self) -> int:
        return self.unread

    def warn_once(self, kind: str, text: str) -> None:
        self.warnings.append(f"{kind}: {text}")

    def close(self) -> None:
        self.is_open = False

    def take_answers(self) -> list[RemotingCommand]:
        """The answers since the last call."""
        answers, self.answers = self.answers, []
        return answers

    @property
    def as_connection(self) -> Connection:
        return cast("Connection", self)
