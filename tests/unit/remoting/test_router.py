"""Every way a request can end, and the answer that goes with it."""

import asyncio
import logging

import pytest

from remoting.codes import RequestCode, ResponseCode
from remoting.command import BINARY_HEADER, RemotingCommand, success_response
from remoting.connection import Connection
from remoting.errors import HeaderError, RequestError
from remoting.router import UNKNOWN, Batch, HandlerResult, Inbox, Router
from tests.unit.remoting.fakes import FakeTransport, arrived, connect, turn


async def _answers(
    router: Router, *requests: RemotingCommand, transport: FakeTransport | None = None
) -> list[RemotingCommand]:
    connection, used, _ = connect(transport=transport)
    router.dispatch([arrived(connection, *requests)])
    await turn()
    return used.sent()


def _request(code: int = 34, opaque: int = 7, flag: int = 0, serialize_type: int = 0) -> RemotingCommand:
    return RemotingCommand(code, opaque, flag, serialize_type=serialize_type)


def _raising(error: Exception) -> Router:
    def handler(_: RemotingCommand, __: Connection) -> RemotingCommand:
        raise error

    router = Router()
    router.register(34, handler)
    return router


async def test_answer_gets_the_opaque_and_serialize_type_of_the_request() -> None:
    router = Router()
    router.register(34, lambda _, __: RemotingCommand(0, opaque=99, ext_fields={"a": "b"}))
    (answer,) = await _answers(router, _request(serialize_type=BINARY_HEADER))
    assert (answer.opaque, answer.flag, answer.serialize_type) == (7, 1, BINARY_HEADER)
    assert answer.ext_fields == {"a": "b"}


async def test_unknown_code_is_answered_3_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    answers = await _answers(Router(), _request(9999), _request(9999))
    assert [answer.code for answer in answers] == [ResponseCode.REQUEST_CODE_NOT_SUPPORTED] * 2
    assert answers[0].remark == " request type 9999 not supported"
    assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_fallback_takes_unknown_codes() -> None:
    router = Router()
    router.register_fallback(lambda request, _: success_response(request, remark=str(request.code)))
    assert [answer.remark for answer in await _answers(router, _request(40))] == ["40"]


async def test_none_leaves_the_answer_to_the_handler() -> None:
    router = Router()
    router.register(34, lambda _, __: None)
    assert await _answers(router, _request()) == []


async def test_oneway_is_never_answered() -> None:
    router = Router()
    router.register(34, lambda request, _: success_response(request))
    failing = _raising(RequestError(14, "no"))
    assert await _answers(router, _request(flag=2), _request(9999, flag=2)) == []
    assert await _answers(failing, _request(flag=2)) == []


@pytest.mark.parametrize(
    ("error", "code", "remark"),
    [
        (RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, "not the leader"), 14, "not the leader"),
        (HeaderError("topic", "is null"), 1, "the custom field <topic> is null"),
        (KeyError("x"), 1, "KeyError: 'x'"),
    ],
)
async def test_errors_become_answers(error: Exception, code: int, remark: str) -> None:
    (answer,) = await _answers(_raising(error), _request())
    assert (answer.code, answer.remark) == (code, remark)


async def test_fault_of_ours_is_logged_once_with_its_trace(caplog: pytest.LogCaptureFixture) -> None:
    await _answers(_raising(KeyError("x")), *[_request()] * 5)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert caplog.records[0].exc_info


async def test_coroutine_is_awaited_and_its_error_answered() -> None:
    async def slow(request: RemotingCommand, _: Connection) -> RemotingCommand | None:
        await asyncio.sleep(0)
        if request.opaque == 1:
            raise RequestError(16, "no")
        return None if request.opaque == 2 else success_response(request)

    router = Router()
    router.register(34, slow)
    answers = await _answers(router, *[_request(opaque=opaque) for opaque in (1, 2, 3)])
    assert sorted((answer.opaque, answer.code) for answer in answers) == [(1, 16), (3, 0)]


async def test_coroutines_beyond_the_bound_are_refused_before_they_run() -> None:
    gate = asyncio.Event()
    ran: list[int] = []

    async def slow(request: RemotingCommand, _: Connection) -> RemotingCommand:
        ran.append(request.opaque)
        await gate.wait()
        return success_response(request)

    router = Router(tasks_max=2)
    router.register(34, slow)
    connection, transport, _ = connect()
    router.dispatch([arrived(connection, *[_request(opaque=opaque) for opaque in (1, 2, 3)])])
    await turn()
    assert [(c.opaque, c.code, c.remark) for c in transport.sent()] == [
        (3, 2, "[OVERLOAD]system busy, start flow control for a while")
    ]
    gate.set()
    await turn()
    assert ran == [1, 2]
    router.dispatch([arrived(connection, _request(opaque=4))])
    await turn()
    assert sorted(c.opaque for c in transport.sent() if c.code == 0) == [1, 2, 4]


async def test_future_is_answered_when_it_is_done() -> None:
    future: asyncio.Future[RemotingCommand | None] = asyncio.get_running_loop().create_future()

    def handler(_: RemotingCommand, __: Connection) -> HandlerResult:
        return future

    router = Router(tasks_max=0)
    router.register(34, handler)
    connection, transport, _ = connect()
    router.dispatch([arrived(connection, _request())])
    await turn()
    assert transport.sent() == []
    future.set_result(RemotingCommand(0))
    await turn()
    assert [c.opaque for c in transport.sent()] == [7]


async def test_close_cancels_what_runs_without_an_answer() -> None:
    async def endless(_: RemotingCommand, __: Connection) -> None:
        await asyncio.Event().wait()

    router = Router()
    router.register(34, endless)
    connection, transport, _ = connect()
    router.dispatch([arrived(connection, _request())])
    await turn()
    await router.close()
    await turn()
    assert transport.sent() == []


async def test_batch_handler_gets_all_its_requests_of_a_turn_in_order() -> None:
    seen: list[list[int]] = []

    def batch_handler(batches: list[Batch]) -> None:
        ((connection, requests),) = batches
        seen.append([request.opaque for request in requests])
        for request in requests:
            connection.send(success_response(request))

    router = Router()
    router.register_batch((RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2), batch_handler)
    router.register(34, lambda request, _: success_response(request, remark="single"))
    answers = await _answers(
        router, _request(10, 1), _request(34, 2), _request(310, 3), _request(9999, 4), _request(310, 5)
    )
    assert seen == [[1, 3, 5]]
    assert [(answer.opaque, answer.code) for answer in answers] == [(2, 0), (4, 3), (1, 0), (3, 0), (5, 0)]


async def test_batch_handler_that_fails_answers_all_with_system_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def batch_handler(batches: list[Batch]) -> None:
        raise OSError("disk")

    router = Router()
    router.register_batch((310,), batch_handler)
    with caplog.at_level(logging.ERROR):
        answers = await _answers(router, *[_request(310, opaque) for opaque in range(3)])
    assert [(answer.opaque, answer.code, answer.remark) for answer in answers] == [
        (opaque, 1, "OSError: disk") for opaque in range(3)
    ]
    assert len(caplog.records) == 1


async def test_answer_too_large_becomes_system_error() -> None:
    router = Router()
    router.register(34, lambda request, _: success_response(request, body=bytes(16 * 1024 * 1024)))
    (answer,) = await _answers(router, _request())
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "too large" in str(answer.remark)


def test_code_cannot_have_two_handlers() -> None:
    router = Router()
    router.register(34, lambda _, __: None)
    with pytest.raises(ValueError, match="34"):
        router.register(34, lambda _, __: None)
    with pytest.raises(ValueError, match="34"):
        router.register_batch((10, 34), lambda _: None)


async def test_requests_that_take_long_together_leave_the_loop_to_others_and_keep_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("remoting.router.TURN_S_MAX", -1.0)
    handled: list[int] = []
    router = Router()
    router.register(7, lambda request, _: handled.append(request.opaque))
    connection, _, _ = connect()
    router.dispatch([arrived(connection, *[RemotingCommand(7, n) for n in range(3)])])
    assert handled == [0]
    router.dispatch([arrived(connection, *[RemotingCommand(7, n) for n in range(3, 5)])])
    assert handled == [0]
    await asyncio.sleep(0)
    assert handled == [0, 1]
    for _ in range(5):
        await asyncio.sleep(0)
    assert handled == [0, 1, 2, 3, 4]


async def test_what_many_connections_send_together_is_handled_in_several_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("remoting.router.TURN_REQUESTS_MAX", 3)
    turns: list[list[int]] = []
    router = Router()
    router.register_batch(
        [34], lambda batch: turns.append([each.opaque for _, many in batch for each in many])
    )
    inbox = Inbox(router)
    connections = [connect()[0] for _ in range(5)]
    for number, connection in enumerate(connections):
        requests = [_request(opaque=10 * number + at) for at in range(2)]
        inbox.add((connection, requests, 34))
    for _ in range(3):
        await asyncio.sleep(0)
        inbox.add((connections[0], [_request(opaque=99)], 34))
    for _ in range(5):
        await asyncio.sleep(0)
    assert [each for turn in turns for each in turn] == [0, 1, 10, 11, 20, 21, 30, 31, 40, 41, 99, 99, 99]
    assert max(map(len, turns)) <= 4


async def test_a_large_body_counts_as_many_requests() -> None:
    turns: list[int] = []
    router = Router()
    router.register_batch([34], lambda batch: turns.append(len(batch)))
    inbox = Inbox(router)
    connection = connect()[0]
    for _ in range(3):
        inbox.add((connection, [RemotingCommand(34, 1, body=bytes(5 << 20))], 34))
    for _ in range(4):
        await asyncio.sleep(0)
    assert turns == [2, 1]


async def test_requests_and_refusals_are_counted_by_their_codes() -> None:
    router = Router()
    router.register(34, lambda request, _: success_response(request))
    router.register(11, lambda request, _: success_response(request, code=ResponseCode.PULL_NOT_FOUND))
    router.register_batch((310,), lambda batches: None)
    await _answers(router, _request(34), _request(310), _request(34), _request(9999), _request(11))
    await _answers(router, _request(310), _request(310))
    assert router.counts.requests == {34: 2, 310: 3, 11: 1, UNKNOWN: 1}
    assert router.counts.refused == {(UNKNOWN, ResponseCode.REQUEST_CODE_NOT_SUPPORTED): 1}
    failing = _raising(RequestError(14, "no"))
    await _answers(failing, _request(flag=2), _request())
    assert failing.counts.refused == {(34, 14): 2}


async def test_codes_from_outside_do_not_fill_the_tables() -> None:
    router = Router()
    router.register_fallback(lambda request, _: success_response(request))
    await _answers(router, *(_request(code) for code in range(1_000, 1_200)))
    assert router.counts.requests == {UNKNOWN: 200}
