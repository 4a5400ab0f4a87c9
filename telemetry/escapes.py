"""Texts from outside for a terminal or a line of the log: what cannot be seen is written as an escape.

The one owner of this rule in Python; that of the page is `admin_api/static/marks.js`. It goes for characters
that speak to a terminal or end a line, that have others shown in another order (U+202E and its relatives),
and that have no width or are left blank, so that two names look alike.
"""

import re
from typing import Final

_BLANK: Final = "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\uffa0\U000e0100-\U000e01ef"
"""What `str.isprintable` lets pass, and is not to be seen: fillers, a joiner, variation selectors. U+FE00 to
U+FE0F choose between two shapes of signs that people use, and stay.
"""
_HAS_BLANK: Final = re.compile(f"[{_BLANK}]").search


def is_plain(text: str) -> bool:
    """Whether every character can be seen as what it is."""
    return text.isprintable() and _HAS_BLANK(text) is None


def escaped(text: str, keep: str = "") -> str:
    r"""`\u202e` for what cannot be seen, as Python writes it; `keep`: control characters that may stay."""
    if is_plain(text):
        return text
    return "".join(c if c in keep or is_plain(c) else ascii(c)[1:-1] for c in text)


def escaped_json(text: str, keep: str = "\n") -> str:
    """The same JSON, with such characters as JSON's own escapes; it lets all from U+007F on stand itself."""
    from json.encoder import encode_basestring_ascii

    if is_plain(text):
        return text
    return "".join(c if c in keep or is_plain(c) else encode_basestring_ascii(c)[1:-1] for c in text)
