"""telemetry.escapes: what cannot be seen in a text is shown as an escape, and nothing else is changed."""

import json
import unicodedata

import pytest

from telemetry.escapes import escaped, escaped_json

ORDER = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
NO_WIDTH = "\u00ad\u200b\u200c\u200d\u2060\ufeff\u034f\u115f\u180e\u180f\u3164\uffa0\U000e0020\U000e0101"
CONTROLS = "\x00\x1b\x7f\x85\x9b\u2028\u2029\n\t\r"
PLAIN = "order-7 Grüße 名前 שלום مرحبا ☕️ 🎉 café"


@pytest.mark.parametrize("char", [*ORDER, *NO_WIDTH, *CONTROLS])
def test_what_cannot_be_seen_is_named(char: str) -> None:
    shown = escaped(f"a{char}b")
    assert (shown[0], shown[1], shown[-1]) == ("a", "\\", "b")
    assert json.loads(f'"{shown}"') == f"a{char}b" if shown[2] in "untr" else shown[2] in "xU"
    as_json = escaped_json(json.dumps(f"a{char}b", ensure_ascii=False))
    assert as_json.isascii()
    assert json.loads(as_json) == f"a{char}b"


@pytest.mark.parametrize("form", [escaped, escaped_json])
def test_what_can_be_seen_stays(form: object) -> None:
    assert callable(form)
    assert form(PLAIN) == PLAIN
    assert form(f"{PLAIN}\u202e") == f"{PLAIN}\\u202e"


def test_what_is_kept_stays() -> None:
    assert escaped("a\tb\nc\u202e", keep="\t") == "a\tb\\nc\\u202e"


def test_no_control_and_no_format_character_is_left() -> None:
    every = "".join(map(chr, range(0x30000))) + "".join(map(chr, range(0xE0000, 0xE0200)))
    left = {unicodedata.category(char) for char in escaped(every)}
    assert left.isdisjoint({"Cc", "Cf", "Zl", "Zp", "Cs"})
