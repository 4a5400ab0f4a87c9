"""LEDGERMQ_END_BATCH (65004): is the log's part of a batch what its writer has sent? And is the writer done?

A task knows only its own rows. Rows that an earlier attempt sent beyond them, or for partitions that no
longer exist, are seen only by the driver, which knows the whole batch once all of it is acknowledged.
"""

from itertools import islice

from broker.leadership import Readiness
from broker.responses import committed_answer, invalid
from broker.send.sequencing import Sequencing
from broker.state.changes import EndWriter
from broker.state.state import ReplicatedState
from broker.state.writers import WRITERS_MAX
from commitlog.log import MessageLog
from commitlog.sequences import NO_DIGEST, PARTITION_MAX, digest_error, writer_error
from remoting.codes import ResponseCode
from remoting.command import RemotingCommand, success_response
from remoting.connection import Connection
from remoting.errors import RequestError
from remoting.headers.send import BatchEnd

SENTENCES_MAX = 3
"""In an answer, about what differs."""


class EndBatchProcessor:
    """One broker's."""

    def __init__(
        self,
        log: MessageLog,
        state: ReplicatedState,
        readiness: Readiness,
        sequencing: Sequencing,
    ) -> None:
        self._log = log
        self._state = state
        self._readiness = readiness
        self._sequencing = sequencing

    async def end_batch(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        end = _read(request.body)
        if not self._log.is_writable():
            hint = self._readiness.leader_hint()
            raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, f"only the leader knows: {hint}")
        if end.is_checked:
            found = list(islice(self._sequencing.differences(end.batch_id, end.writers), SENTENCES_MAX))
            if found:
                remark = f"batch {end.batch_id}: {'; '.join(found)}"
                raise RequestError(ResponseCode.LEDGERMQ_SEQUENCE_DIFFERS, remark)
        over = [EndWriter(writer, tuple(written)) for writer, written in end.writers.items() if written]
        if not (end.is_over and over):
            return success_response(request)
        return await committed_answer(request, self._state.propose(*over))


def _read(body: bytes) -> BatchEnd:
    try:
        end = BatchEnd.parse(body)
    except ValueError as error:
        raise invalid(str(error)) from error
    if sum(map(len, end.writers.values())) > WRITERS_MAX:
        raise invalid(f"there are never more than {WRITERS_MAX} writers and partitions")
    for writer, written in end.writers.items():
        problem = writer_error(writer)
        for partition, (_, digest) in written.items():
            if not 0 <= partition <= PARTITION_MAX:
                problem = f"a partition is a number up to {PARTITION_MAX}"
            elif digest != NO_DIGEST:
                problem = problem or digest_error(digest.decode())
        if problem is not None:
            raise invalid(problem)
    return end
