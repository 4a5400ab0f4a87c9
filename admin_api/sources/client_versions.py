"""RocketMQ's MQVersion: clients and brokers send the ordinal, people know the name."""

from typing import Final

_V4_0_0_SNAPSHOT: Final = 212
"""From here on each release is a snapshot and the release itself, patch 0 to 9, minor 0 to 9."""
VERSION_5: Final = _V4_0_0_SNAPSHOT + 2 * 100
"""5.0.0-SNAPSHOT"""
_HIGHEST: Final = _V4_0_0_SNAPSHOT + 2 * 200 - 1


def version_name(ordinal: int) -> str | None:
    """`4.9.8` for 409, `5.1.0-SNAPSHOT` for 432; None of versions before 4.0 and of what is no version."""
    if not _V4_0_0_SNAPSHOT <= ordinal <= _HIGHEST:
        return None
    release, is_final = divmod(ordinal - _V4_0_0_SNAPSHOT, 2)
    major, rest = divmod(release, 100)
    minor, patch = divmod(rest, 10)
    return f"{4 + major}.{minor}.{patch}{'' if is_final else '-SNAPSHOT'}"
