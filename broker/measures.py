"""What a log measures of itself, for whoever shows it."""

from dataclasses import dataclass, field

from dledger.writer import WriteMetrics
from telemetry.histogram import Histogram


@dataclass(frozen=True, slots=True)
class LogMeasures:
    """`dispatch`: the seconds that stretches of committed entries took to come into the queues and to be told
    to all who wait for them.
    """

    dispatch: Histogram = field(default_factory=Histogram)
    writes: WriteMetrics = field(default_factory=WriteMetrics)
