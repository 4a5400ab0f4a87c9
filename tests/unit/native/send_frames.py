"""Sends as the stock clients write them, and strategies for kindred ones."""

from __future__ import annotations

import json
import struct
from typing import Any

from hypothesis import strategies as st

from remoting.command import BINARY_HEADER, JSON_HEADER, RemotingCommand, encode_command

KEY = "7F00000100002A9F0000000000000001"
PROPERTIES = f"UNIQ_KEY\x01{KEY}\x02WAIT\x01true\x02TAGS\x01a\x02"
JAVA = {"a": "p", "b": "t", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000000", "h": "0"}
JAVA |= {"i": PROPERTIES, "j": "0", "k": "false", "m": "false", "n": "broker-a"}
GO = {"producerGroup": "p", "topic": "t", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4"}
GO |= {
    "queueId": "1",
    "sysFlag": "0",
    "bornTimestamp": "1700000000000",
    "flag": "0",
    "properties": PROPERTIES,
}
GO |= {"reconsumeTimes": "0", "unitMode": "false", "maxReconsumeTimes": "0", "batch": "false"}
CPP: dict[str, Any] = {"AccessKey": "", "OnsChannel": "ALIYUN", "Signature": "x", **JAVA}
CPP |= {"d": 4, "e": 0, "f": 0, "h": 0, "k": "0", "l": 16, "m": "0"}
del CPP["n"]


def json_frame(header: object, body: bytes = b"body", end: str = "", *, is_ascii: bool = True) -> bytes:
    text = (json.dumps(header, ensure_ascii=is_ascii) + end).encode("utf-8", "surrogatepass")
    return struct.pack(">II", 4 + len(text) + len(body), len(text)) + text + body


def json_send(ext: object, code: object = 310, **others: object) -> dict[str, object]:
    header: dict[str, object] = {"code": code, "extFields": ext, "flag": 0, "language": "JAVA", "opaque": 7}
    return {**header, "serializeTypeCurrentRPC": "JSON", "version": 479, **others}


def _coded(serialize_type: int, **values: Any) -> bytes:
    return encode_command(RemotingCommand(language="JAVA", serialize_type=serialize_type, **values))


FRAMES = (
    json_frame(json_send(JAVA)),
    json_frame(json_send(GO, 10, language="GO", version=317, remark="")),
    json_frame(json_send(CPP, language="CPP", version=333, remark=""), b"body\n", "\n"),
    json_frame(json_send(JAVA | {"i": "KEYS\x01schl\u00fcssel\x02" + PROPERTIES}), is_ascii=False),
    json_frame(json_send({}, 34)),
    json_frame(json_send(JAVA | {"m": "true"}, 320)),
    *(_coded(kind, code=310, opaque=1, ext_fields=JAVA, body=b"b") for kind in (JSON_HEADER, BINARY_HEADER)),
    *(_coded(kind, code=10, opaque=2, ext_fields=GO, flag=2) for kind in (JSON_HEADER, BINARY_HEADER)),
    *(_coded(kind, code=11, opaque=3, ext_fields={"topic": "t"}) for kind in (JSON_HEADER, BINARY_HEADER)),
    *(_coded(kind, code=0, opaque=4, flag=1, remark="r\u00e9") for kind in (JSON_HEADER, BINARY_HEADER)),
    _coded(JSON_HEADER, code=310, opaque=5, ext_fields=JAVA, body=bytes(5000)),
)

_numbers = st.sampled_from(
    ["", "0", "1", "3", "007", "-1", "2147483647", "2147483648", "9" * 18, "9" * 19, "1e3"]
)
_numbers |= st.integers(-3, 8).map(str) | st.integers(-(2**65), 2**65).map(str)
_booleans = st.sampled_from(["true", "false", "1", "0", "", "TRUE", "no", " true"])
_text = st.text(max_size=12) | st.sampled_from(["t", "other", "%RETRY%g", "SCHEDULE_TOPIC_XXXX"])
_pieces = st.sampled_from(
    [
        *("UNIQ_KEY\x01", KEY, "\x01", "\x02", "DELAY\x013\x02", "TRAN_MSG\x01true\x02", "TAGS\x01a\x02"),
        *(
            "CLUSTER\x01c\x02",
            "MSG_REGION\x01r\x02",
            "TRACE_ON\x01false\x02",
            "TIMER_DELAY_SEC\x015\x02",
            "_SYS_MSG_PRIORITY_\x012\x02",
            "XUNIQ_KEY\x01",
            "UNIQ_KEY\x01\x02",
            "WAIT\x01true\x02",
        ),
        *("x" * 32_700, "y" * 20, "\u00e9", "UNIQ_KEY", "TIMER_", "D", "\x00", '"\\/'),
    ]
)
properties = st.lists(_pieces, max_size=6).map("".join) | st.just(PROPERTIES) | st.text(max_size=20)


def _values(letter: str) -> st.SearchStrategy[Any]:
    kinds = dict.fromkeys("defghjl", _numbers) | dict.fromkeys("km", _booleans) | {"i": properties}
    text = kinds.get(letter, _text)
    return text | st.none() | st.booleans() | st.integers(-5, 2**70) if letter in "defgl" else text


_LONG = dict(zip("abcdefghijklmn", [*GO, "x"], strict=False))
_LONG |= {"i": "properties", "j": "reconsumeTimes", "k": "unitMode", "l": "maxReconsumeTimes", "m": "batch"}
_LONG |= {"n": "bname"}


@st.composite
def ext_fields(draw: st.DrawFn) -> dict[str, Any]:
    """The fields of a right send with some changed, left out, or added."""
    fields: dict[str, Any] = dict(JAVA)
    for letter in draw(st.lists(st.sampled_from("abcdefghijklmn"), max_size=4)):
        fields[letter] = draw(_values(letter))
    for letter in draw(st.lists(st.sampled_from("abcdefghijklmn"), max_size=1)):
        fields.pop(letter, None)
    if draw(st.booleans()):
        fields = {_LONG[letter]: value for letter, value in fields.items()}
    return fields | draw(
        st.dictionaries(st.sampled_from(["x", "b", "topic", "\u00e9", "i\x01"]), _text, max_size=1)
    )


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """One frame of a send in JSON, or in the binary form where its fields are text."""
    fields = draw(ext_fields())
    code = draw(st.sampled_from([310, 10, 320, 11]))
    is_text = all(isinstance(value, str) for value in fields.values())
    if is_text and draw(st.booleans()):
        return _coded(BINARY_HEADER, code=code, opaque=draw(st.integers(0, 9)), ext_fields=fields, body=b"b")
    others = draw(
        st.dictionaries(
            st.sampled_from(["opaque", "flag", "version", "language", "remark", "code", "more"]),
            st.none() | st.booleans() | st.integers(-(2**33), 2**33) | st.text(max_size=3) | st.just(0.5),
            max_size=1,
        )
    )
    header = json_send(fields, code) | others
    if draw(st.integers(0, 9)) == 0:
        del header[draw(st.sampled_from(sorted(header)))]
    return json_frame(header, end=draw(st.sampled_from(["", "\n", " ", "x"])), is_ascii=draw(st.booleans()))
