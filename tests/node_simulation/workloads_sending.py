"""Producers of the group workload: several sends in flight, batches, order by key, and tries again."""

import asyncio
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from remoting.client.aio import RemotingClient, RouteTable
from remoting.client.routes import Queue as RoutedQueue
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import ClientError, ConnectFailedError, PendingRequestsFullError, RemotingError
from remoting.headers.send import SendMessageRequestHeader
from remoting.route import DEFAULT_TOPIC
from tests.histories.operations import Outcome, Queue, Send
from tests.histories.recorder import NOT_DONE
from tests.node_simulation.clients import History, body_of

_SUB_MESSAGE = struct.Struct(">iiiii")
TRY_TIMEOUT_S = 1.0
PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """`tries_max`: after so many a send is given up. `interval_ms`: the mean pause of one sender."""

    senders: int = 2
    tries_max: int = 8
    interval_ms: int = 100
    batch_max: int = 4
    body_bytes_max: int = 64
    ordered_probability: float = 0.3
    queues: int = 2


@dataclass(slots=True)
class Result:
    """How one send ended: the tries that may have been stored count, and whether any of them is open."""

    outcome: Outcome = Outcome.FAIL
    tries: int = 0
    queue: Queue | None = None
    offsets: tuple[int, ...] = ()


class Producer:
    """The senders of one client. `acknowledged` hears the topic and the values of each send that was."""

    def __init__(
        self,
        name: str,
        client: RemotingClient,
        namesrv: str,
        rng: random.Random,
        history: History,
        options: ProducerOptions,
        acknowledged: Callable[[str, Sequence[str]], None],
    ) -> None:
        self._name = name
        self._client = client
        self._routes = RouteTable(client, namesrv)
        self._rng = rng
        self._history = history
        self._options = options
        self._acknowledged = acknowledged

    async def send(self, sender: int, topic: str, values: Sequence[str]) -> None:
        """One send from its first try to its end, whatever that is: the history has it in every case."""
        invoked = self._history.now
        result = Result(Outcome.INFO)
        completed: int | None = None
        try:
            result = await self._try_often(sender, topic, values, result)
            completed = self._history.now
        finally:
            tries = result.tries if completed is not None else None
            self._history.add(
                Send(
                    f"{self._name}/{sender}", invoked, completed, result.outcome, tuple(values), result.queue,
                    result.offsets, tries,
                )
            )  # fmt: skip
        if result.outcome is Outcome.OK:
            self._acknowledged(topic, values)

    async def _try_often(self, sender: int, topic: str, values: Sequence[str], result: Result) -> Result:
        """A sender's ordered messages go to the queue of its number, others to any."""
        rng, options = self._rng, self._options
        is_ordered = rng.random() < options.ordered_probability
        body = _body(values, rng.randint(0, options.body_bytes_max))
        is_open = False
        for _ in range(options.tries_max):
            queue = await self._find_queue(topic, sender if is_ordered else rng.randrange(1 << 16))
            if queue is not None:
                result.tries += 1
                header = self._header(queue, topic, is_batch=len(values) > 1)
                outcome, answer = await send_once(self._client, queue.address, header, body)
                if answer is not None and outcome is Outcome.OK:
                    first = int(answer.ext_fields["queueOffset"])
                    place = Queue(topic, int(answer.ext_fields["queueId"]))
                    return Result(Outcome.OK, result.tries, place, tuple(range(first, first + len(values))))
                is_open = is_open or outcome is Outcome.INFO
                result.tries -= outcome is Outcome.FAIL
                self._routes.invalidate(topic)
            await asyncio.sleep(PAUSE_S + rng.random() * PAUSE_S)
        return Result(Outcome.INFO if is_open else Outcome.FAIL, result.tries)

    async def _find_queue(self, topic: str, number: int) -> RoutedQueue | None:
        try:
            queues = await self._routes.publish_queues(topic)
        except ClientError:
            return None
        return queues[number % len(queues)] if queues else None

    def _header(self, queue: RoutedQueue, topic: str, *, is_batch: bool) -> SendMessageRequestHeader:
        return SendMessageRequestHeader(
            producer_group="producers",
            topic=topic,
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=self._options.queues,
            queue_id=queue.queue_id,
            sys_flag=0,
            born_timestamp_ms=self._history.now // 1_000,
            is_batch=is_batch,
        )


async def send_once(
    client: RemotingClient,
    address: str,
    header: SendMessageRequestHeader,
    body: bytes,
    timeout_s: float = TRY_TIMEOUT_S,
) -> tuple[Outcome, RemotingCommand | None]:
    """One try at one broker: what is known of it, and the answer if there is one."""
    code = RequestCode.SEND_BATCH_MESSAGE if header.is_batch else RequestCode.SEND_MESSAGE
    request = RemotingCommand(code, ext_fields=header.ext_fields(), body=body)
    try:
        answer = await client.invoke(address, request, timeout_s)
    except (ConnectFailedError, PendingRequestsFullError):
        return Outcome.FAIL, None
    except RemotingError:
        return Outcome.INFO, None
    if answer.code == ResponseCode.SUCCESS:
        return Outcome.OK, answer
    return (Outcome.FAIL if answer.code in NOT_DONE else Outcome.INFO), answer


def _body(values: Sequence[str], size_bytes: int) -> bytes:
    """One message, or the sub-messages of a batch back to back (the layout of broker/send/admission.py)."""
    bodies = [body_of(value, size_bytes) for value in values]
    if len(bodies) == 1:
        return bodies[0]
    parts = []
    for body in bodies:
        size = _SUB_MESSAGE.size + len(body) + 2
        parts.append(_SUB_MESSAGE.pack(size, 0, 0, 0, len(body)) + body + b"\0\0")
    return b"".join(parts)
