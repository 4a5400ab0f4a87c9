"""Errors of reading a log or its queues, besides OSError."""


class PositionError(ValueError):
    """The log has no committed record at the requested position."""


class DamagedRecordError(Exception):
    """Committed bytes on this node's disk are damaged. Their repair was requested: the caller may try again
    later, or on another node.
    """


class DamagedQueueError(DamagedRecordError):
    """A unit of a consume queue is damaged: all queues must be built again."""


class CorruptLogError(Exception):
    """Bytes of the log that had been synced are damaged or missing."""
