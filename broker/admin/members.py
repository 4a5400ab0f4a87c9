"""LEDGERMQ_CHANGE_MEMBERS (65008): the leader plans a change of the group's members and proposes the first
step of it as an entry of the log. The engine does what follows: a joining member that has nearly the whole
log gets its vote, then the one that it replaces is removed.

Also how fast each member's disk gets the log, for those that show progress.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from pydantic import ValidationError

from broker.admin.member_plan import GroupNow, Plan, PlanRefusedError, plan_change
from broker.admin.types import ChangeKind, MemberChange, MemberPlanView, MemberView, split_address
from broker.config import BrokerConfig
from broker.leadership import OnLeader
from broker.members import GroupMembers
from broker.responses import invalid
from dledger.core.membership import Member
from dledger.core.status import NodeStatus, PeerStatus
from dledger.core.types import PushState
from dledger.core.types import ResponseCode as EngineCode
from dledger.server import DLedgerServer
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, success_response
from remoting.connection import Connection
from remoting.errors import RequestError
from remoting.router import Handlers
from sockets.addresses import is_loopback

BODY_BYTES_MAX: Final = 4096
KEEPS_UP_BYTES: Final = 16 * 1024 * 1024
"""A member that lacks more of the log than this would keep producers waiting if it were needed."""
KEEPS_UP_CONTACT_MS: Final = 3_000
RATE_WINDOW_MS: Final = 5_000
RATE_STEP_MS: Final = 500
"""Between two samples at least: a status that is read more often does not make the rate jump."""

_REFUSALS: Final = {
    EngineCode.CONFIGURATION_PENDING: (
        "an earlier change of the members, or the start of this leader's term, is not committed yet: try "
        "again"
    ),
    EngineCode.ILLEGAL_CONFIGURATION: "only one voter can change at a time, or the members changed meanwhile",
    EngineCode.NOT_LEADER: "this node does not lead any more: try again",
    EngineCode.LEADER_NOT_READY: "this node has just begun to lead: try again",
    EngineCode.LEADER_TRANSFERRING: "leadership is being handed over: try again",
}
"""Nothing was changed."""
_UNSURE: Final = {
    EngineCode.WAIT_QUORUM_ACK_TIMEOUT: "no majority has stored the change in time",
    EngineCode.TERM_CHANGED: "the leader changed before the change was committed",
}
"""The entry is in the log, and may be committed or be replaced."""


class MembersAdmin:
    """Plans and proposes changes of the members."""

    def __init__(
        self,
        config: BrokerConfig,
        engine: DLedgerServer | None,
        members: GroupMembers,
        on_leader: OnLeader,
    ) -> None:
        self._config = config
        self._engine = engine
        self._members = members
        self._on_leader = on_leader

    def handlers(self) -> Handlers:
        return {RequestCode.LEDGERMQ_CHANGE_MEMBERS: self._on_leader(self.change)}

    async def change(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """65008: answered when the first step is committed, with all steps."""
        engine = self._engine
        if engine is None:
            raise RequestError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "this broker has no replica group")
        wanted = _wanted(request.body)
        try:
            self._require_able(wanted)
            plan = plan_change(self._now(engine), wanted)
            if wanted.change is ChangeKind.FORMAT_LEVEL and not engine.speaks_newest_protocol(plan.new):
                raise PlanRefusedError(
                    "Not every member runs this release: one of an older release could not read the log any "
                    "more."
                )
        except PlanRefusedError as error:
            force = " Add force to do it all the same." if error.is_forceable else ""
            raise RequestError(ResponseCode.NO_PERMISSION, f"{error}{force}") from error
        if not wanted.dry_run:
            await _propose(engine, plan)
        return success_response(request, body=_view(plan).to_json())

    def _now(self, engine: DLedgerServer) -> GroupNow:
        status, own_id = engine.status(), self._config.dledger_self_id
        connected = {own_id, *(each.id for each in self._members.others if engine.is_connected(each.id))}
        return GroupNow(
            configuration=self._members.configuration,
            is_committed=self._members.is_committed,
            leader_id=own_id,
            keeping_up={own_id, *(peer.id for peer in _keeping_up(status) if peer.id in connected)},
            connected=connected,
        )

    def _require_able(self, wanted: MemberChange) -> None:
        """What a group of several nodes needs in the configuration of each, and this node lacks."""
        if wanted.change not in (ChangeKind.ADD, ChangeKind.REPLACE, ChangeKind.MOVE):
            return
        config = self._config
        host, _ = split_address(wanted.address or "")
        if config.replication_tls is None and not is_loopback(host):
            raise PlanRefusedError(
                f"{host} is beyond this machine, and replication has no certificates: set "
                "replicationTlsCertPath, "
                "replicationTlsKeyPath and replicationTlsCaPath on every node."
            )
        if config.checks_signatures and config.inner_account is None:
            raise PlanRefusedError(
                "Access control is on, and nodes need innerClientAuthenticationCredentials to sign requests "
                "to "
                "each other: set it on every node."
            )
        if config.server_tls.mode_in_force == "enforcing" and not config.tls_enable:
            raise PlanRefusedError(
                "tlsMode is enforcing, and nodes need tlsEnable = true to send requests to each other: set "
                "it."
            )


def _wanted(body: bytes) -> MemberChange:
    """Raises RequestError."""
    if len(body) > BODY_BYTES_MAX:
        raise invalid(f"the body has {len(body)} bytes, {BODY_BYTES_MAX} are allowed")
    try:
        return MemberChange.from_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        message = str(first["msg"]).removeprefix("Value error, ")
        raise invalid(f"{where}: {message}" if where else message) from error


async def _propose(engine: DLedgerServer, plan: Plan) -> None:
    """Returns when the entry is committed. Raises RequestError."""
    done: asyncio.Future[EngineCode] = asyncio.get_running_loop().create_future()

    def on_done(code: EngineCode) -> None:
        if not done.done():  # its request was cancelled
            done.set_result(code)

    code = engine.propose_configuration(plan.new, on_done)
    if code is not EngineCode.SUCCESS:
        words = _REFUSALS.get(code, f"the change was refused: {code.name}")
        raise RequestError(ResponseCode.NO_PERMISSION, words)
    code = await done
    if code is not EngineCode.SUCCESS:
        words = _UNSURE.get(code, f"the change failed: {code.name}")
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, f"{words}; it may still be made: `ledgermq member list` shows it"
        )


def _keeping_up(status: NodeStatus) -> list[PeerStatus]:
    return [
        peer
        for peer in status.peers
        if peer.push_state is PushState.APPEND
        and (peer.lag_bytes or 0) <= KEEPS_UP_BYTES
        and peer.last_contact_ms_ago is not None
        and peer.last_contact_ms_ago <= KEEPS_UP_CONTACT_MS
    ]


def _view(plan: Plan) -> MemberPlanView:
    members = tuple(map(member_view, plan.new.members))
    return MemberPlanView(steps=plan.steps, warnings=plan.warnings, lost=plan.lost, members=members)


def member_view(member: Member) -> MemberView:
    address = f"{member.host}:{member.port}"
    return MemberView(
        id=member.id, replication_address=address, role=member.role.value, replaces=member.replaces
    )


class ReceivedRates:
    """How many bytes a second each member's disk has got lately. `now_ms`: a clock that never goes back."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._samples: dict[str, deque[tuple[int, int]]] = {}

    def rate(self, member_id: str, position: int) -> int | None:
        """The member has the log up to `position` now. None: not known yet."""
        now_ms = self._now_ms()
        samples = self._samples.setdefault(member_id, deque())
        while samples and now_ms - samples[0][0] > RATE_WINDOW_MS:
            samples.popleft()
        if samples and position < samples[-1][1]:
            samples.clear()  # its log was cut
        if not samples or now_ms - samples[-1][0] >= RATE_STEP_MS:
            samples.append((now_ms, position))
        first_ms, first = samples[0]
        return (position - first) * 1000 // (now_ms - first_ms) if now_ms - first_ms >= RATE_STEP_MS else None

    def keep(self, member_ids: set[str]) -> None:
        """Forget the others."""
        for gone in self._samples.keys() - member_ids:
            del self._samples[gone]
