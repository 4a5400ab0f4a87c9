"""A send whose typed header was read together with its frame. Pure."""

from remoting.command import RemotingCommand
from remoting.headers import SendMessageRequestHeader


class SendRequest(RemotingCommand):
    """An ordinary request 10, 310 or 320. Its ext fields are those of its header, in the form with whole
    names: what the header has no name for is not kept.
    """

    __slots__ = ("header",)

    header: SendMessageRequestHeader

    @property
    def ext_fields(self) -> dict[str, str]:
        return self.header.ext_fields()

    @ext_fields.setter
    def ext_fields(self, fields: dict[str, str]) -> None:
        self.header = SendMessageRequestHeader.parse(fields)


def send_header(request: RemotingCommand) -> SendMessageRequestHeader:
    """The header of a send, whichever way it was read. Raises HeaderError."""
    if type(request) is SendRequest:
        return request.header
    return SendMessageRequestHeader.parse(request.ext_fields)
