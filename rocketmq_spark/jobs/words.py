"""Amounts, lengths of time and moments: parsed from the command line and formatted for reports. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from rocketmq_spark.errors import OptionError
from rocketmq_spark.options import parse_duration_ms

_AMOUNT: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_bytes(name: str, text: str) -> int:
    """`512`, `64KB` (64,000), `64KiB` (65,536), `1.5GB`. Raises: OptionError naming the option."""
    match = _AMOUNT.fullmatch(text)
    if match is None:
        raise OptionError(f"{name} is {text!r}, must be an amount such as 65536, 64KiB, 100MB or 1GiB")
    base = 1024 if match[3] else 1000
    return round(float(match[1]) * float(base ** _POWERS[match[2].lower()]))


def parse_seconds(name: str, text: str) -> float:
    """`30s`, `15m`, `2h`; a bare number is seconds. Raises: OptionError naming the option."""
    bare = text.strip()
    return parse_duration_ms(name, f"{bare}s" if bare.replace(".", "", 1).isdecimal() else text) / 1000


def parse_moment_ms(name: str, text: str) -> int:
    """`2026-01-31T05:00`, `2026-01-31`, milliseconds since 1970; without a zone in UTC.

    Raises: OptionError naming the option.
    """
    if text.strip().isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise OptionError(
            f"{name} is {text!r}, must be a moment such as 2026-01-31T05:00 (UTC) or milliseconds since 1970"
        ) from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def bytes_words(amount: float) -> str:
    """`12.3 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(amount) < 1000:
            return f"{amount:,.0f} {unit}" if unit == "B" else f"{amount:,.1f} {unit}"
        amount /= 1000
    return f"{amount:,.1f} TB"
