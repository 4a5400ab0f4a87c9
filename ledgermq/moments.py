"""Points in time as people write them."""

import re
import time
from datetime import datetime
from typing import Final

from ledgermq.errors import WRONG_USAGE, UserError

_AGO: Final = re.compile(r"(\d{1,9})(ms|s|m|h|d)")
_UNIT_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNIX_MS: Final = re.compile(r"\d{12,15}")
FORMS: Final = "2026-01-31T05:00, 2026-01-31 05:00+01:00, a Unix time in ms, or 30m for half an hour ago"


def parse_moment_ms(option: str, text: str) -> int:
    """Unix time in ms. Without a zone it is this machine's. Raises: UserError."""
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return time.time_ns() // 1_000_000 - int(ago[1]) * _UNIT_MS[ago[2]]
    if _UNIX_MS.fullmatch(text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
        return max(0, round(moment.astimezone().timestamp() * 1000))
    except (ValueError, OverflowError, OSError):
        raise UserError(f"{option} {text!r} is no time: write {FORMS}.", WRONG_USAGE) from None
