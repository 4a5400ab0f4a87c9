"""What a service cannot answer.

`admin_api.problems` gives these their HTTP status, the command line its exit code.
The text of each is a sentence for people.
"""


class ServiceError(Exception):
    """The base; never raised itself."""


class NotFoundError(ServiceError):
    """Every broker that had to be asked answered, and none knows the thing."""


class UnavailableError(ServiceError):
    """Nobody could say: the name server or the brokers that would know give no answer."""


class InvalidError(ServiceError):
    """What was asked for makes no sense, however the cluster is."""
