"""What reading a commit log or its queues can raise, besides OSError."""


class PositionError(ValueError):
    """No committed bytes of this log stand at the position asked for."""


class DamagedRecordError(Exception):
    """Committed bytes cannot be read from this node's disk as they were written. Their repair has been asked
    for: try again later, or elsewhere.
    """


class DamagedQueueError(DamagedRecordError):
    """A consume queue's unit on the disk is not what was written: all queues must be built again."""
