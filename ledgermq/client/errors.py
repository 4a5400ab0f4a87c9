"""What the client raises. Each error says whether another try is safe: it is where the broker has certainly
not done what it was asked for.
"""

from remoting.errors import ClientError


class MessagingError(ClientError):
    """Any failure of a request of this client.

    is_retry_safe: another try cannot do it twice. For a send: no second message can come of it.
    """

    is_retry_safe = False


class NotSentError(MessagingError):
    """Nothing was sent: no name server or leader could be reached in time."""

    is_retry_safe = True


class UncertainError(MessagingError):
    """It was sent and not answered: the broker may have done it. A send may be in the log."""


class RefusedError(MessagingError):
    """The broker has refused it and done nothing. `code` is RocketMQ's ResponseCode, `remark` its text."""

    is_retry_safe = True

    def __init__(self, words: str, code: int, remark: str) -> None:
        super().__init__(words)
        self.code = code
        self.remark = remark


class TopicNotFoundError(RefusedError):
    """No name server knows the topic, and brokers do not make it."""


class AccessDeniedError(RefusedError):
    """The account is unknown, its signature is wrong, or it has not the right."""


class WrongMessageError(MessagingError):
    """The message cannot be sent: a name, a property or its size is not possible. Nothing was sent."""

    is_retry_safe = True


class WrongSubscriptionError(MessagingError):
    """A consumer cannot be made so: a topic, an expression or a number is not possible. Nothing was sent."""

    is_retry_safe = True


class ReceiptExpiredError(MessagingError):
    """The message's invisible time has ended, or it was acknowledged: it may be another consumer's."""


class ClosedError(MessagingError):
    """The client is closed, or was not started. Nothing was sent."""

    is_retry_safe = True


class UnreadableError(MessagingError):
    """An answer of a broker cannot be read."""
