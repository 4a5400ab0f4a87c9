"""33 VIEW_MESSAGE_BY_ID: one message by its position in the log, from any node that has it."""

from broker.clients import ClientConnection
from broker.context import BrokerContext
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, success_response
from remoting.errors import RequestError
from remoting.headers import ViewMessageRequestHeader


class QueryProcessor:
    """Reads committed records."""

    def __init__(self, context: BrokerContext) -> None:
        self._log = context.log

    def view_message(self, request: RemotingCommand, connection: ClientConnection) -> RemotingCommand:
        """33: the record, as it stands in the log."""
        position = ViewMessageRequestHeader.parse(request.ext_fields).position
        record = self._log.record_at(position)
        if record is None:
            remark = f"can not find message by the offset, {position}"
            raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
        return success_response(request, body=record)


def register(context: BrokerContext) -> None:
    processor = QueryProcessor(context)
    context.router.register(RequestCode.VIEW_MESSAGE_BY_ID, processor.view_message)
