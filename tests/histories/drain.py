"""The final reading: every queue of a topic from its first offset to its last, written down as a drain."""

from __future__ import annotations

import asyncio

from remoting.client.aio import RouteTable
from remoting.client.routes import Queue as RoutedQueue
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import RemotingError
from remoting.headers.consume import PullMessageRequestHeader
from tests.histories.operations import Drain, Queue, Seek
from tests.histories.recorder import EMPTY_POLLS, Recorder, RecordingClient

GROUP = "FinalReading"
SUBSCRIPTION_GIVEN = 4
PULL_MESSAGES = 32
RETRY_PAUSE_S = 0.2


async def drain_topic(recorder: Recorder, namesrv: str, topic: str, *, process: str = "final") -> int:
    """Read all queues at the leader, once there is one; returns how many queues there are.

    The caller sets a limit of time. A follower would not do: it may not have all that is committed.
    """
    client = RecordingClient(recorder, process)
    try:
        routes = RouteTable(client, namesrv)
        while not (queues := await routes.publish_queues(topic)):
            await asyncio.sleep(RETRY_PAUSE_S)
        for queue in queues:
            await drain_queue(client, recorder, topic, queue, process=process)
        return len(queues)
    finally:
        await client.close()


async def drain_queue(
    client: RecordingClient, recorder: Recorder, topic: str, queue: RoutedQueue, *, process: str
) -> None:
    """Read one queue; what is refused or lost is asked for again."""
    key = Queue(topic, queue.queue_id)
    invoked = recorder.now()
    begin: int | None = None
    offset = 0
    recorder.write(Seek(process, invoked, key, None))
    while True:
        answer = await _pull(client, queue, topic, offset)
        if answer is None:
            await asyncio.sleep(RETRY_PAUSE_S)
            continue
        following = int(answer.ext_fields["nextBeginOffset"])
        if begin is None:
            begin = int(answer.ext_fields["minOffset"])
        if answer.code != ResponseCode.SUCCESS and following == offset:
            break
        offset = following
    recorder.write(Drain(process, invoked, recorder.now(), key, begin, offset))


async def _pull(
    client: RecordingClient, queue: RoutedQueue, topic: str, offset: int
) -> RemotingCommand | None:
    header = PullMessageRequestHeader(
        consumer_group=GROUP,
        topic=topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=PULL_MESSAGES,
        sys_flag=SUBSCRIPTION_GIVEN,
        commit_offset=0,
        suspend_timeout_ms=0,
        subscription="*",
        expression_type="TAG",
    )
    try:
        request = RemotingCommand(RequestCode.PULL_MESSAGE, ext_fields=header.ext_fields())
        answer = await client.invoke(queue.address, request)
    except RemotingError:
        return None
    is_answered = answer.code == ResponseCode.SUCCESS or answer.code in EMPTY_POLLS
    return answer if is_answered else None
