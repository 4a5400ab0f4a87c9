"""The dialect: unquoted integer keys and object keys, read and written."""

import orjson
import pytest

from remoting.fastjson import (
    DEPTH_MAX,
    REQUEST_BYTES_MAX,
    REQUEST_VALUES_MAX,
    FastjsonError,
    list_in_steps,
    loads,
    loads_request,
    object_key_map,
)
from remoting.slices import finish

_QUEUE = {"topic": "T", "queueId": 0, "brokerName": "b"}
_QUEUE_TEXT = '{"brokerName":"b","queueId":0,"topic":"T"}'


def test_plain_json_is_read_as_such() -> None:
    assert loads(b'{"a":[1,2.5,null,true,"\\u00e9"]}') == {"a": [1, 2.5, None, True, "é"]}


def test_unquoted_integer_keys_become_text() -> None:
    assert loads(b'{0:"10.0.0.1:10911", -1 : {2:[]}}') == {"0": "10.0.0.1:10911", "-1": {"2": []}}


def test_arrays_of_any_length_stand_below_unquoted_keys() -> None:
    assert loads(b"{0:[],1:[5],2:[5,6]}") == {"0": [], "1": [5], "2": [5, 6]}


def test_object_keys_become_their_sorted_text() -> None:
    text = b'{"offsetTable":{{"topic":"T","queueId":0,"brokerName":"b"}:123},"x":1}\n'
    assert loads(text) == {"offsetTable": {_QUEUE_TEXT: 123}, "x": 1}


def test_object_key_map_is_written_as_java_reads_it() -> None:
    body = orjson.dumps({"offsetTable": object_key_map([(_QUEUE, 123), ({**_QUEUE, "queueId": 1}, 0)])})
    second = _QUEUE_TEXT.replace(":0", ":1")
    assert body.decode() == f'{{"offsetTable":{{{_QUEUE_TEXT}:123,{second}:0}}}}'
    assert loads(body)["offsetTable"] == {_QUEUE_TEXT: 123, second: 0}


def test_a_long_list_is_written_in_steps() -> None:
    steps = list_in_steps([{"number": number} for number in range(100)])
    assert len([next(steps) for _ in range(3)]) == 3
    assert loads(orjson.dumps(finish(steps))) == [{"number": number} for number in range(100)]


def test_strings_keep_their_braces_and_escapes() -> None:
    assert loads('{0:"{\\"a\\":1}, [x]"}') == {"0": '{"a":1}, [x]'}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" ",
        b"{",
        b"{0",
        b"{0:",
        b"{0:1",
        b"{0 1}",
        b"{0:1}x",
        b"{0:1}{",
        b"{0:01}",
        b"{0:1-2}",
        b"{0:tru}",
        b"[0:1]",
        b'{0:"a}',
        b'{0:"\\q"}',
        b"{,}",
        b"\xff",
        b"[" * 100_000 + b"{0:1}",
        b"{" * 100_000,
    ],
)
def test_text_that_is_neither_raises(text: bytes) -> None:
    with pytest.raises(FastjsonError):
        loads(text)


def test_depth_is_bounded() -> None:
    assert loads("{0:" * DEPTH_MAX + "1" + "}" * DEPTH_MAX)
    with pytest.raises(FastjsonError, match="nested"):
        loads("{0:" * (DEPTH_MAX + 1) + "1" + "}" * (DEPTH_MAX + 1))


def test_long_texts_are_read_alike() -> None:
    queues = ",".join(
        f'{{ "queueId":{n},"topic":"T}}:{{","brokerName":"b\\"{{1:2}}" }} : {{"offset":{n},7:[-1.5,"3:4"]}}'
        for n in range(200)
    )
    read = loads(f'{{"offsetTable":{{{queues}}},"x":{{-1:null, 12 :"{{5:6}}"}}}}')
    assert read["x"] == {"-1": None, "12": "{5:6}"}
    assert len(read["offsetTable"]) == 200
    key = orjson.dumps({"brokerName": 'b"{1:2}', "queueId": 9, "topic": "T}:{"}).decode()
    assert read["offsetTable"][key] == {"offset": 9, "7": [-1.5, "3:4"]}


@pytest.mark.parametrize("broken", ["{01:1}", "{1.5.2:1}", '{{"a":b}:1}', "{1:2", '{"a:1}'])
def test_long_texts_that_are_neither_raise(broken: str) -> None:
    with pytest.raises(FastjsonError):
        loads(f'["{"x" * 5000}",{broken}]')


def test_a_request_body_is_bounded_before_it_is_read() -> None:
    assert loads_request(b'{"a":[1,2],0:{"b":[]}}') == {"a": [1, 2], "0": {"b": []}}
    most = b"[" + b",".join([b"1"] * (REQUEST_VALUES_MAX - 2)) + b"]"
    assert len(loads_request(most)) == REQUEST_VALUES_MAX - 2
    with pytest.raises(FastjsonError, match=r"values; 65536 are possible"):
        loads_request(most[:-1] + b",1,1]")
    with pytest.raises(FastjsonError, match=r"bytes; 2097152 are possible"):
        loads_request(b'"' + b"x" * REQUEST_BYTES_MAX + b'"')
    with pytest.raises(FastjsonError, match="too much for fastjson's form of it"):
        loads_request(b"{0:" + b'"' * 50_000)


def test_a_long_text_is_not_read_token_by_token() -> None:
    with pytest.raises(FastjsonError, match="neither JSON nor"):
        loads("[" + "[]," * 10_000 + "}")
