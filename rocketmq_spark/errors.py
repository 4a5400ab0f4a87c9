"""All errors that the pipeline raises to its users, and the one sentence that is shown for an error inside
Spark. Each message says what to do or what was tried.
"""

import re
from typing import Final

SENTENCE_LENGTH_MAX: Final = 2000
_OWN_ERROR: Final = re.compile(r"rocketmq_spark\.(?:\w+\.)*errors\.\w+: (.+)")


class RocketmqSparkError(Exception):
    """Base of all errors of the pipeline."""


class OptionError(RocketmqSparkError, ValueError):
    """An option is unknown, missing, unreadable or contradicts another one."""


class TopicNotFoundError(RocketmqSparkError):
    """The name server knows no route to the topic."""


class DataLossError(RocketmqSparkError):
    """Messages that a query should read are no longer in the cluster; the error names the range."""


class ClusterUnavailableError(RocketmqSparkError):
    """No node answered before the deadline; the message names what was tried and how it ended."""


class RequestRefusedError(RocketmqSparkError):
    """A node refused a request; a retry would get the same answer.

    code: the response code; remark: the node's own text.
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
    """Bytes are not the records, or not the compressed body, that they should be."""


class JobError(RocketmqSparkError):
    """A job failed; the message is a sentence with the reason and the remedy."""


class SetupError(JobError):
    """Spark, Java or a package that the job needs is missing or too old."""


class ManifestError(JobError):
    """The manifest of an archive is unreadable or contradicts itself."""


class ArchiveError(JobError):
    """The archive cannot be used, or new messages do not continue its content."""


def sentence_of(error: BaseException) -> str:
    """The text of an error; if Spark's traces contain an error of the pipeline, the text of that one."""
    text = str(error).strip()
    if isinstance(error, RocketmqSparkError):
        return text
    own = _OWN_ERROR.findall(text)
    if own:
        return str(own[-1]).strip()[:SENTENCE_LENGTH_MAX]
    first_line = text.splitlines()[0] if text else type(error).__name__
    return first_line[:SENTENCE_LENGTH_MAX]
