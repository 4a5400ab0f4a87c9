"""What reading a log or its queues can raise, besides OSError."""


class PositionError(ValueError):
    """The log has no committed record at the requested position."""


class DamagedRecordError(Exception):
    """Committed bytes cannot be read from this node's disk as they were written. Their repair was requested:
    try again later, or on another node.
    """


class DamagedQueueError(DamagedRecordError):
    """A consume queue's unit on the disk is not what was written: all queues must be built again."""


class CorruptLogError(Exception):
    """Bytes that were safely on the disk are damaged or missing."""
