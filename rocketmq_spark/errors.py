"""Every error of the pipeline that a user can meet, and the one sentence that is shown of an error inside
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


class JobError(RocketmqSparkError):
    """A job could not be done; the message is a sentence with the reason and the remedy."""


class SetupError(JobError):
    """Spark, Java or a package that the job needs is missing or too old."""


class ManifestError(JobError):
    """The manifest of an archive is unreadable or contradicts itself."""


class ArchiveError(JobError):
    """What was to be archived does not go with what the archive holds."""


def sentence_of(error: BaseException) -> str:
    """The words of an error: of the pipeline's own one inside Spark's traces where there is one."""
    text = str(error).strip()
    if isinstance(error, RocketmqSparkError):
        return text
    own = _OWN_ERROR.findall(text)
    if own:
        return str(own[-1]).strip()[:SENTENCE_LENGTH_MAX]
    first_line = text.splitlines()[0] if text else type(error).__name__
    return first_line[:SENTENCE_LENGTH_MAX]
