"""Which LedgerMQ this process runs."""

import functools
from importlib import metadata


@functools.cache
def own_release() -> str | None:
    """The version, such as `0.2.0`; None where it is not installed."""
    try:
        return metadata.version("ledgermq")
    except metadata.PackageNotFoundError:
        return None
