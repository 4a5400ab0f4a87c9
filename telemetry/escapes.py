"""Escapes for texts from clients and other programs, on a terminal or in a line of the log.

The only implementation of this rule in Python; the web page has its own in `admin_api/static/markup.js`. It
escapes characters that control a terminal or end a line, that change the order in which text is shown (U+202E
and similar ones), and invisible ones, with which two different names would look the same.
"""

import re
from typing import Final

_BLANK: Final = "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\uffa0\U000e0100-\U000e01ef"
"""Invisible characters that `str.isprintable` accepts: fillers, a joiner, variation selectors. U+FE00 to
U+FE0F are not escaped: they select between two forms of common characters.
"""
_HAS_BLANK: Final = re.compile(f"[{_BLANK}]").search


def is_plain(text: str) -> bool:
    """Whether no character of the text needs an escape."""
    return text.isprintable() and _HAS_BLANK(text) is None


def escaped(text: str, keep: str = "") -> str:
    r"""The text with escapes such as `\u202e`, as in Python; `keep`: control characters that stay."""
    if is_plain(text):
        return text
    return "".join(c if c in keep or is_plain(c) else ascii(c)[1:-1] for c in text)


def escaped_json(text: str, keep: str = "\n") -> str:
    """The same JSON with such characters escaped; JSON itself need not escape any from U+007F on."""
    from json.encoder import encode_basestring_ascii

    if is_plain(text):
        return text
    return "".join(c if c in keep or is_plain(c) else encode_basestring_ascii(c)[1:-1] for c in text)
