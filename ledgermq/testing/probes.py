"""Whether a cluster takes messages: one is sent to RocketMQ's topic for benchmarks, and acknowledged."""

import asyncio
from collections.abc import Callable
from typing import Final

from broker.state.topics import BENCHMARK_TOPIC
from ledgermq.errors import UserError
from ledgermq.load.cluster import LoadCluster, send_command
from remoting.client.aio import RemotingClient
from remoting.client.routes import leaders_of
from remoting.codes import ResponseCode
from remoting.errors import RemotingError

POLL_S: Final = 0.005
TRY_S: Final = 1.0
"""A leader that is paused or cut off gives no answer; another one leads a moment later."""


async def until_writable(
    client: RemotingClient, namesrv: str, limit_s: float, must_go_on: Callable[[], None] = lambda: None
) -> str:
    """The address of the leader, once it has acknowledged a message. `must_go_on` is called before each try
    and may raise.

    Raises: UserError when there is none within the limit.
    """
    cluster = LoadCluster(client, namesrv)
    problem = "the name server lists no leader"
    try:
        async with asyncio.timeout(limit_s):
            while True:
                must_go_on()
                route = await cluster.route(BENCHMARK_TOPIC)
                for address in leaders_of(route.broker_datas).values() if route else ():
                    problem = await _problem(client, address)
                    if not problem:
                        return address
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise UserError(f"no message was acknowledged within {limit_s:g} s: {problem}.") from None


async def _problem(client: RemotingClient, address: str) -> str:
    """Why the leader did not acknowledge a message; empty when it did."""
    try:
        answer = await client.invoke(address, send_command(BENCHMARK_TOPIC, 0), TRY_S)
    except RemotingError as error:
        return str(error)
    return "" if answer.code == ResponseCode.SUCCESS else f"{address} answers {answer.code} {answer.remark}"
