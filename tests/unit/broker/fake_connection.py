"""A client's connection that only remembers what was sent over it."""

from remoting.command import RemotingCommand


class FakeConnection:
    """Keeps broker.clients.ClientConnection."""

    def __init__(
        self, connection_id: int = 1, remote_host: str = "127.0.0.1", remote_port: int = 40_000
    ) -> None:
        self.connection_id = connection_id
        self.remote_host = remote_host
        self.remote_port = remote_port
        self.sent: list[RemotingCommand] = []
        self.oneways: list[RemotingCommand] = []
        self.is_closed = False

    def send(self, command: RemotingCommand) -> None:
        self.sent.append(command)

    def send_oneway(self, command: RemotingCommand) -> None:
        self.oneways.append(command)

    def close(self) -> None:
        self.is_closed = True
