"""Requests for routes that callers share."""

import asyncio
import gc

import pytest

from remoting.client.aio import RouteTable
from remoting.command import RemotingCommand
from remoting.errors import ClientError, RemotingError

TOPIC = "orders"


async def test_a_route_that_no_caller_waits_for_any_more_may_fail_unseen() -> None:
    """Found by a simulated seed: the sender was cancelled while the name server did not answer."""
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    unanswered = asyncio.Event()

    class SilentClient:
        async def invoke(self, *_: object) -> RemotingCommand:
            await unanswered.wait()
            raise RemotingError("did not answer in time")

    routes = RouteTable(SilentClient(), "127.0.0.1:1")  # type: ignore[arg-type]
    asking = asyncio.create_task(routes.request(TOPIC))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    unanswered.set()
    for _ in range(4):
        await asyncio.sleep(0)
    gc.collect()
    assert reported == []
    with pytest.raises(ClientError):
        await routes.request(TOPIC)
