"""Errors of the jobs, and the one sentence that a person gets to see of an error inside Spark."""

import re
from typing import Final

from rocketmq_spark.errors import RocketmqSparkError

SENTENCE_LENGTH_MAX: Final = 2000
_OWN_ERROR: Final = re.compile(r"rocketmq_spark\.(?:\w+\.)*errors\.\w+: (.+)")


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
