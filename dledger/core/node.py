"""One member of a group as a machine without I/O: values in, `Output` out. See docs/dledger.md."""

from dledger.core.config import Config
from dledger.core.messages import Message
from dledger.core.output import Output, Proposal, Rejection
from dledger.core.ports import LogReader, Rng
from dledger.core.status import NodeStatus
from dledger.core.types import HardState, LogState, ResponseCode, Role


class Node:
    """Signatures only until the core lands in the following commits."""

    def __init__(
        self,
        config: Config,
        hard_state: HardState,
        log: LogState,
        reader: LogReader,
        rng: Rng,
        now_ms: int,
    ) -> None:
        raise NotImplementedError

    role: Role
    term: int
    leader_id: str | None
    commit_index: int
    begin_index: int
    end_index: int
    end_term: int
    term_start_index: int

    def receive(self, sender: str, message: Message, now_ms: int) -> None:
        raise NotImplementedError

    def check_append(self, count: int) -> ResponseCode:
        raise NotImplementedError

    def propose(self, count: int, now_ms: int) -> Proposal | Rejection:
        raise NotImplementedError

    def take_term_start(self) -> Proposal | None:
        raise NotImplementedError

    def persisted(self, last_index: int, term: int, now_ms: int) -> None:
        raise NotImplementedError

    def peer_connected(self, peer: str, now_ms: int) -> None:
        raise NotImplementedError

    def peer_disconnected(self, peer: str, now_ms: int) -> None:
        raise NotImplementedError

    def transfer_leadership(self, transferee: str, now_ms: int) -> ResponseCode:
        raise NotImplementedError

    def log_begins_at(self, begin_index: int) -> None:
        raise NotImplementedError

    def set_disk_full(self, is_full: bool) -> None:
        raise NotImplementedError

    def tick(self, now_ms: int) -> None:
        raise NotImplementedError

    def deadline_ms(self) -> int:
        raise NotImplementedError

    def take_output(self, now_ms: int) -> Output:
        raise NotImplementedError

    def status(self, now_ms: int) -> NodeStatus:
        raise NotImplementedError

    def check_invariants(self) -> None:
        raise NotImplementedError
