"""What brokers ask a push consumer for operators: 220 set offsets, 221 its offsets, 307 what it does, 309
consume a message now (ClientRemotingProcessor).
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import orjson

from ledgermq.client.handling import HandlerRunner
from ledgermq.client.messages import received_message
from ledgermq.client.outcomes import RetryLater
from ledgermq.client.queue_locks import queue_json, read_queue
from ledgermq.client.queue_runs import QueueRun
from ledgermq.client.session import Session
from ledgermq.client.subscriptions import Subscription
from remoting.client.routes import MessageQueue
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, success_response
from remoting.connection import Connection
from remoting.errors import RequestError
from remoting.fastjson import FastjsonError, loads_request, object_key_map
from remoting.message_body import BodyError
from remoting.record import CorruptRecordError, decode_record

_MIB: Final = 1024 * 1024

logger = logging.getLogger(__name__)


class BrokerQuestions:
    """Answers them for one consumer.

    figures: as Java's clients name them. runs: the queues that are the consumer's now.
    restart: has a queue go on at an offset.
    """

    def __init__(
        self,
        figures: Mapping[str, str],
        subscriptions: Iterable[Subscription],
        runs: Mapping[MessageQueue, QueueRun],
        restart: Callable[[QueueRun, int], None],
        runner: HandlerRunner,
        *,
        is_ordered: bool,
    ) -> None:
        self._figures = figures
        self._subscriptions = subscriptions
        self._runs = runs
        self._restart = restart
        self._runner = runner
        self._is_ordered = is_ordered

    def answer_in(self, session: Session) -> None:
        session.answer(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, self.reset)
        session.answer(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, self.offsets)
        session.answer(RequestCode.GET_CONSUMER_RUNNING_INFO, self.running)
        session.answer(RequestCode.CONSUME_MESSAGE_DIRECTLY, self.consume)

    def reset(self, request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
        """220, oneway: the queues of this member go on at the offsets in it."""
        for queue, offset in read_offset_table(request.body).items():
            run = self._runs.get(queue)
            if run is not None:
                self._restart(run, offset)
        return None

    def offsets(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """221"""
        topic = request.ext_fields.get("topic", "")
        rows = [
            (queue_json(queue), run.committable)
            for queue, run in sorted(self._runs.items())
            if queue.topic == topic and run.committable is not None
        ]
        return success_response(request, body=orjson.dumps({"messageQueueTable": object_key_map(rows)}))

    def running(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """307: ConsumerRunningInfo."""
        queues = sorted(self._runs.items())
        info = {
            "mqTable": object_key_map((queue_json(queue), _figures(run)) for queue, run in queues),
            "properties": self._figures,
            "statusTable": {},
            "subscriptionSet": [each.to_json() for each in self._subscriptions],
        }
        return success_response(request, body=orjson.dumps(info))

    async def consume(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """309: no offset changes, and a failure has no further effect."""
        try:
            record = decode_record(request.body)
            message = received_message(record, request.ext_fields.get("brokerName", ""))
        except (CorruptRecordError, BodyError) as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"the message cannot be read: {error}") from error
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        failure = await self._runner.run(message)
        result = {
            "autoCommit": True,
            "consumeResult": _result_of(failure),
            "order": self._is_ordered,
            "remark": None if failure is None else f"{type(failure).__name__}: {failure}"[:1024],
            "spentTimeMills": round((loop.time() - began_s) * 1000),
        }
        return success_response(request, body=orjson.dumps(result))


def read_offset_table(body: bytes) -> dict[MessageQueue, int]:
    """Of a request 220, in the form for Java's clients or that for C++ ones. Raises RequestError."""
    try:
        table = loads_request(body)["offsetTable"]
        if isinstance(table, dict):
            return {read_queue(orjson.loads(key)): int(offset) for key, offset in table.items()}
        return {read_queue(row): int(row["offset"]) for row in table}
    except (FastjsonError, KeyError, TypeError, ValueError) as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"the offsets cannot be read: {error!r}") from error


def _result_of(error: Exception | None) -> str:
    if error is None:
        return "CR_SUCCESS"
    return "CR_LATER" if isinstance(error, RetryLater) else "CR_THROW_EXCEPTION"


def _figures(run: QueueRun) -> dict[str, Any]:
    """ProcessQueueInfo."""
    progress = run.progress
    has_messages = progress is not None and len(progress) > 0
    return {
        "cachedMsgCount": 0 if progress is None else len(progress),
        "cachedMsgMaxOffset": progress.next_offset - 1 if progress is not None and has_messages else 0,
        "cachedMsgMinOffset": progress.committable if progress is not None and has_messages else 0,
        "cachedMsgSizeInMiB": 0 if progress is None else progress.size_bytes // _MIB,
        "commitOffset": -1 if run.committable is None else run.committable,
        "droped": run.is_dropped,
        "lastConsumeTimestamp": run.last_consume_ms,
        "lastPullTimestamp": run.last_pull_ms,
        "locked": run.lock is not None,
    }
