"""How long trips to the disk take, and what each brings there. Pure."""

from telemetry.histogram import COUNTS, SIZES, Histogram


class WriteMeasures:
    """Of one log. Trips that failed are not among them."""

    def __init__(self) -> None:
        self.seconds = Histogram()
        """Write and sync; the write alone where an acknowledgement does not wait for the disk."""
        self.entries = Histogram(COUNTS)
        self.size_bytes = Histogram(SIZES)

    def written(self, took_s: float, entries: int, size_bytes: int) -> None:
        """A trip has ended. `entries` 0: what it brought is not known, or nothing new."""
        self.seconds.observe(took_s)
        if entries:
            self.entries.observe(entries)
            self.size_bytes.observe(size_bytes)
