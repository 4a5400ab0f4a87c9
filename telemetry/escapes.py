"""Escapes for texts from outside, in a terminal or a line of the log.

The only implementation of this rule in Python; that of the page is `admin_api/static/markup.js`. Escaped are
characters that control a terminal or end a line, that change the order in which others are shown (U+202E and
its relatives), and that are invisible, so that two names could look the same.
"""

import re
from typing import Final

_BLANK: Final = "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\uffa0\U000e0100-\U000e01ef"
"""Invisible characters that `str.isprintable` accepts: fillers, a joiner, variation selectors. U+FE00 to
U+FE0F are not among them: they select between two shapes of common signs.
"""
_HAS_BLANK: Final = re.compile(f"[{_BLANK}]").search


def is_plain(text: str) -> bool:
    """Whether every character is visible and unambiguous."""
    return text.isprintable() and _HAS_BLANK(text) is None


def escaped(text: str, keep: str = "") -> str:
    r"""Escapes such as `\u202e`, as Python writes them; `keep`: control characters that may stay."""
    if is_plain(text):
        return text
    return "".join(c if c in keep or is_plain(c) else ascii(c)[1:-1] for c in text)


def escaped_json(text: str, keep: str = "\n") -> str:
    """The same JSON with such characters escaped; JSON itself escapes none from U+007F on."""
    from json.encoder import encode_basestring_ascii

    if is_plain(text):
        return text
    return "".join(c if c in keep or is_plain(c) else encode_basestring_ascii(c)[1:-1] for c in text)
