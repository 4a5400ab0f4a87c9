"""Every error of the pipeline that a user can meet. Each message says what to do or what was tried."""


class RocketmqSparkError(Exception):
    """Base of all errors of the pipeline."""


class OptionError(RocketmqSparkError, ValueError):
    """An option is unknown, missing, unreadable or contradicts another one."""


class TopicNotFoundError(RocketmqSparkError):
    """The name server knows no route to the topic."""


class DataLossError(RocketmqSparkError):
    """Messages that a query was to read are not in the cluster any more; the message names the range."""


class ClusterUnavailableError(RocketmqSparkError):
    """No node answered before the deadline; the message names what was tried and how it ended."""


class RequestRefusedError(RocketmqSparkError):
    """A node answered with a code that another try would not change.

    code: the response code; remark: the node's own words.
    """

    def __init__(self, what: str, code: int, remark: str | None) -> None:
        super().__init__(f"{what} was refused with code {code}: {remark or 'no remark'}")
        self.what = what
        self.code = code
        self.remark = remark

    def __reduce__(self) -> tuple[type["RequestRefusedError"], tuple[str, int, str | None]]:
        return type(self), (self.what, self.code, self.remark)


class DeliveryError(RocketmqSparkError):
    """Rows cannot be written exactly once: the broker does not support it, or the writer's numbers do not fit
    what the broker knows of it.
    """


class CorruptDataError(RocketmqSparkError):
    """Bytes that should be records, or a compressed body, are not."""
