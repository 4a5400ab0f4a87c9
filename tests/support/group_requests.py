"""What a consumer of group g and an operator ask about queue 1 of topic t, of an `Operator`'s broker."""

import asyncio

from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from tests.support.operator import Operator

RESET = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET


def pull_request(offset: int, opaque: int, **ext: str) -> RemotingCommand:
    fields = {
        "consumerGroup": "g",
        "topic": "t",
        "queueId": "1",
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        **ext,
    }
    return RemotingCommand(RequestCode.PULL_MESSAGE, opaque=opaque, ext_fields=fields)


async def pull_at(operator: Operator, offset: int, **ext: str) -> RemotingCommand:
    request = pull_request(offset, 5, **ext)
    return await operator.ask(RequestCode.PULL_MESSAGE, **request.ext_fields)


async def commit(operator: Operator, offset: int) -> int | None:
    """What counts after a consumer's commit for queue 1, which is answered as a success in any case."""
    ext = {"consumerGroup": "g", "topic": "t", "queueId": "1", "commitOffset": str(offset)}
    assert (await operator.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **ext)).code == 0
    return operator.parts.consumers.commits.current("g", "t", 1)


async def begin_reset(operator: Operator, opaque: int, **ext: str) -> None:
    """An operator's reset that is in the log, but not committed if the log waits for that."""
    puts = len(operator.log.put_calls)
    send_reset(operator, opaque, **ext)
    while len(operator.log.put_calls) == puts:
        await asyncio.sleep(0)


def send_reset(operator: Operator, opaque: int, **ext: str) -> None:
    fields = {"topic": "t", "group": "g", "timestamp": "0", **ext}
    request = RemotingCommand(RESET, opaque=opaque, ext_fields=fields)
    operator.parts.router.dispatch([(operator.connection.as_connection, [request], request.code)])
