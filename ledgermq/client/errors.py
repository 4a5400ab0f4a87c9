"""What can go wrong for a producer or consumer, as sentences."""


class ClientError(Exception):
    """The cluster refused, or could not be reached in the time that was given."""
