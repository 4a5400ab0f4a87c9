"""33: a message by its position."""

from pathlib import Path

from commitlog.record import decode_record
from remoting.codes import RequestCode
from tests.unit.broker.consume_bench import make_bench, request


async def test_a_message_is_found_by_its_position_on_any_node(tmp_path: Path) -> None:
    bench = await make_bench(tmp_path)
    (_, position) = await bench.put(b"one", b"two")
    bench.follow()
    answer = await bench.ask(request(RequestCode.VIEW_MESSAGE_BY_ID, offset=str(position)))
    assert answer.code == 0
    assert decode_record(answer.body).body == b"two"


async def test_a_position_where_no_message_begins_is_answered_1(tmp_path: Path) -> None:
    bench = await make_bench(tmp_path)
    (position,) = await bench.put(b"one")
    for wrong in (position + 1, -5, 10**12):
        answer = await bench.ask(request(RequestCode.VIEW_MESSAGE_BY_ID, offset=str(wrong)))
        assert (answer.code, answer.remark) == (1, f"can not find message by the offset, {wrong}")


async def test_messages_by_key_are_not_there_yet(tmp_path: Path) -> None:
    bench = await make_bench(tmp_path)
    answer = await bench.ask(request(RequestCode.QUERY_MESSAGE, topic="t", key="k"))
    assert answer.code == 3
