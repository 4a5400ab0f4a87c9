"""Every error of the protocol layer.

`FrameError` and `CommandError` are the peer's fault and end its connection. `HeaderError` and `RequestError`
are answered. The `RemotingError` family is what a caller of `Connection.request` or `RemotingClient` has to
expect; `ClientError` is for callers that ask a cluster, not one node.
"""


class FrameError(ValueError):
    """The byte stream cannot be split into frames any more: a length is out of bounds."""


class CommandError(ValueError):
    """A complete frame has no readable header."""


class HeaderError(ValueError):
    """A request's ext fields lack a required field, or one of them has an unreadable value."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"the custom field <{field}> {problem}")
        self.field = field
        self.problem = problem


class RequestError(Exception):
    """Raised by a handler: answer the request with this code and remark."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(f"{int(code)}: {remark}")
        self.code = int(code)
        self.remark = remark


class RemotingError(Exception):
    """Our request got no answer."""


class ConnectFailedError(RemotingError):
    """No connection to the address could be made in time."""


class RequestTimeoutError(RemotingError):
    """The request was sent, but not answered in time. The peer may or may not have acted on it."""


class RemotingClosedError(RemotingError):
    """The connection closed before the answer came. The peer may or may not have acted on it."""


class PendingRequestsFullError(RemotingError):
    """The connection already waits for its bound of answers; nothing was sent."""


class ClientError(Exception):
    """The cluster refused a request, or gave no answer in time. The text is a sentence for users."""


class ReadOnlyTopicError(ClientError):
    """A topic exists, and no broker has the permission to write to it."""
