"""Numbers as RocketMQ's filter has them: Java's Integer, Long and Double, read from a property's text and
compared by Java's rules.
"""

import math
import re
from typing import Final

INTEGER_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
_LONG_DIGITS_MAX: Final = 19
_BASIC_PLANE_END: Final = 0x10000
_WHOLE: Final = re.compile(r"[+-]?\d+")
_DECIMAL: Final = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?")
_HEXADECIMAL: Final = re.compile(
    r"([+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?"
)
_NAMED: Final = re.compile(r"[+-]?(?:NaN|Infinity)")
_TRIMMED: Final = "".join(map(chr, range(ord(" ") + 1)))
"""What Java's String.trim takes away."""


class NotANumberError(ValueError):
    """Java's NumberFormatException: the text is no number of the kind."""


def integer_of(text: str) -> int:
    """Integer.valueOf. Raises NotANumberError."""
    return _whole(text, INTEGER_MAX)


def long_of(text: str) -> int:
    """Long.valueOf. Raises NotANumberError."""
    return _whole(text, LONG_MAX)


def double_of(text: str) -> float:
    """Double.valueOf: spaces around it, a suffix, hexadecimal digits, NaN and Infinity are fine. Raises
    NotANumberError.
    """
    trimmed = text.strip(_TRIMMED)
    if decimal := _DECIMAL.fullmatch(trimmed):
        return float(decimal[1])
    if hexadecimal := _HEXADECIMAL.fullmatch(trimmed):
        return _from_hexadecimal(hexadecimal[1])
    if _NAMED.fullmatch(trimmed):
        return float(trimmed)
    raise NotANumberError


def compare_whole(left: int, right: int) -> int:
    """Integer.compareTo and Long.compareTo: below, at or above 0."""
    return (left > right) - (left < right)


def compare_doubles(left: float, right: float) -> int:
    """Double.compareTo: NaN equals itself and is above all, and 0.0 is above -0.0."""
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right:
        return 0 if left else compare_whole(_sign(left), _sign(right))
    return compare_whole(math.isnan(left), math.isnan(right))


def _sign(zero: float) -> int:
    return int(math.copysign(1.0, zero))


def _whole(text: str, largest: int) -> int:
    """Decimal digits of any script, as Character.digit takes them, but one UTF-16 unit each."""
    if not _WHOLE.fullmatch(text) or (not text.isascii() and max(map(ord, text)) >= _BASIC_PLANE_END):
        raise NotANumberError
    digits = text.lstrip("+-").lstrip("0")
    if len(digits) > _LONG_DIGITS_MAX:
        raise NotANumberError
    number = int(digits or "0")
    if text.startswith("-"):
        number = -number
    if not -largest - 1 <= number <= largest:
        raise NotANumberError
    return number


def _from_hexadecimal(text: str) -> float:
    try:
        return float.fromhex(text)
    except OverflowError:
        return -math.inf if text.startswith("-") else math.inf
