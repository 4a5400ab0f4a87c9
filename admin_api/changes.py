"""Every change to the cluster goes through here: preview, confirmation, carrying out, one line of audit.

A change describes its effects first. One that loses something is only carried out with the confirmation that
the preview handed out, and only while the preview still says the same; the confirmation is a MAC over it,
so that nothing is kept between the two calls but which confirmations are used up.
"""

import asyncio
import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol
from weakref import WeakValueDictionary

import orjson

from admin_api.audit import AuditError, AuditLog
from admin_api.gateway import AskError
from admin_api.schemas.audit import AuditEntry, AuditOutcome
from admin_api.schemas.changes import ChangeResult, EffectView, OutcomeView
from admin_api.security.actor import Actor
from admin_api.security.masking import masked
from admin_api.services.errors import ServiceError, UnavailableError
from remoting.codes import ResponseCode

_log = logging.getLogger(__name__)

CONFIRMATION_TTL_S: Final = 300
CONFIRMATIONS_USED_MAX: Final = 10_000
"""Remembered until they expire; with more in five minutes no further confirmation is taken."""


class Action(StrEnum):
    """The kinds of change, as the audit log names them."""

    TOPIC_CREATE = "topic.create"
    TOPIC_UPDATE = "topic.update"
    TOPIC_DELETE = "topic.delete"
    GROUP_CREATE = "group.create"
    GROUP_UPDATE = "group.update"
    GROUP_DELETE = "group.delete"
    OFFSET_RESET = "offset.reset"
    OFFSET_CLONE = "offset.clone"
    OFFSET_SKIP = "offset.skip"
    MESSAGE_SEND = "message.send"
    MESSAGE_RESEND = "message.resend"
    DLQ_RESEND = "dlq.resend"
    BROKER_CONFIG = "broker.config"
    BROKER_CLEAN = "broker.clean"
    BROKER_PERMISSION = "broker.permission"
    NAMESRV_CONFIG = "namesrv.config"
    NAMESRV_KV = "namesrv.kv"
    LEADER_TRANSFER = "leader.transfer"
    LEADER_PREFERRED = "leader.preferred"


@dataclass(frozen=True, slots=True)
class Effect:
    """One thing that becomes different: `broker-a/3`, `120`, `57, 63 messages again`. None: unknown, or not
    there."""

    subject: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class Preview:
    """What a change would do now."""

    action: Action
    target: str
    effects: tuple[Effect, ...]
    warnings: tuple[str, ...] = ()
    is_destructive: bool = False
    """Whether it needs a confirmation: it loses, repeats or interrupts something."""
    basis: str | None = None
    """What must be the same at the confirmed call. None: all of the effects. A change whose numbers move all
    the time (an offset of a group that consumes) says here what does matter."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one part of a change went. `problem` is a sentence, `code` what a broker that refused answered."""

    subject: str
    ok: bool
    problem: str | None = None
    code: int | None = None

    @classmethod
    def failed(cls, subject: str, error: AskError) -> "Outcome":
        return cls(subject, ok=False, problem=str(error), code=error.code)


class Change(Protocol):
    """One change to one target. Values of secrets stand nowhere in its preview (security/masking.py)."""

    @property
    def action(self) -> Action: ...
    @property
    def target(self) -> str: ...

    async def preview(self) -> Preview:
        """What it would do now. Raises: AskError, ChangeRefusedError, what the service raises."""
        ...

    async def carry_out(self, preview: Preview) -> Sequence[Outcome]:
        """Does it. Raises AskError when nothing was done at all."""
        ...


class ChangeRefusedError(ServiceError):
    """The change makes no sense as things stand; the text is a sentence."""


class UnconfirmedError(Exception):
    """A destructive change came without a confirmation that holds; `result` is the preview of now."""

    def __init__(self, reason: str, result: ChangeResult, *, is_missing: bool) -> None:
        super().__init__(reason)
        self.result = result
        self.is_missing = is_missing


class ChangeFailedError(Exception):
    """No part of the change was done; `result` has the outcomes. `is_refused`: the brokers will not do it as
    things stand; otherwise they could not, or gave no answer."""

    def __init__(self, reason: str, result: ChangeResult, *, is_refused: bool) -> None:
        super().__init__(reason)
        self.result = result
        self.is_refused = is_refused


@dataclass(slots=True)
class _Confirmations:
    """Hands out and takes back confirmations. `now_s` is Unix time."""

    now_s: Callable[[], float]
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    used: dict[str, int] = field(default_factory=dict)

    def issue(self, preview: Preview, actor: Actor) -> str:
        expires_s = int(self.now_s()) + CONFIRMATION_TTL_S
        nonce = secrets.token_hex(8)
        return f"{expires_s}.{nonce}.{self._mac(preview, actor, expires_s, nonce)}"

    def refusal(self, confirmation: str, preview: Preview, actor: Actor) -> str | None:
        """Why the confirmation does not hold for this preview, or None, and then it is used up."""
        expires, _, rest = confirmation.partition(".")
        nonce, _, mac = rest.partition(".")
        if not (expires.isascii() and expires.isdigit() and len(expires) <= 12):
            return "this is no confirmation"
        now_s = self.now_s()
        self.used = {known: until_s for known, until_s in self.used.items() if until_s > now_s}
        if int(expires) < now_s:
            return "the confirmation has expired"
        if not hmac.compare_digest(mac.encode(), self._mac(preview, actor, int(expires), nonce).encode()):
            return "the situation changed since the preview"
        if nonce in self.used:  # the MAC covers it as it stands; its time has several spellings (01300, 1300)
            return "the confirmation was used already"
        if len(self.used) >= CONFIRMATIONS_USED_MAX:
            return f"{CONFIRMATIONS_USED_MAX} confirmations were used in {CONFIRMATION_TTL_S} s; wait"
        self.used[nonce] = int(expires)
        return None

    def _mac(self, preview: Preview, actor: Actor, expires_s: int, nonce: str) -> str:
        signed = orjson.dumps([actor.name, expires_s, nonce, _essence(preview)])
        return hmac.new(self.key, signed, hashlib.sha256).hexdigest()


def _essence(preview: Preview) -> list[object]:
    effects = [[effect.subject, effect.before, effect.after] for effect in preview.effects]
    return [
        preview.action.value,
        preview.target,
        preview.is_destructive,
        list(preview.warnings),
        effects if preview.basis is None else preview.basis,
    ]


class Changes:
    """One per process. Changes to the same target go one after the other."""

    def __init__(self, audit: AuditLog, now_s: Callable[[], float] = time.time) -> None:
        self._audit = audit
        self._confirmations = _Confirmations(now_s)
        self._now_s = now_s
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def apply(
        self, change: Change, *, dry_run: bool | None, confirmation: str | None, actor: Actor
    ) -> ChangeResult:
        """The preview, or what became of the change. Without `dry_run` a destructive change is only
        previewed.

        Raises: UnconfirmedError, ChangeFailedError, AuditError when the change cannot be audited (then it is
        not made), and what the change's preview raises.
        """
        lock = self._locks.setdefault(change.target, asyncio.Lock())
        async with lock:
            try:
                preview = await change.preview()
            except Exception as error:
                if dry_run is not True:  # left out, it may have been meant: only a preview would say
                    await self._audit.append(self._failed_early(change, actor, error))
                raise
            if preview.is_destructive if dry_run is None else dry_run:
                return self._dry(preview, actor)
            await self._require_confirmed(preview, confirmation, actor)
            return await self._carry_out(change, preview, actor)

    def _dry(self, preview: Preview, actor: Actor) -> ChangeResult:
        token = self._confirmations.issue(preview, actor) if preview.is_destructive else None
        return _result(preview, is_dry_run=True, confirmation=token)

    async def _require_confirmed(self, preview: Preview, confirmation: str | None, actor: Actor) -> None:
        if not preview.is_destructive:
            return
        if confirmation is None:
            reason: str | None = "this change needs the confirmation that its dry run gives"
        else:
            reason = self._confirmations.refusal(confirmation, preview, actor)
        if reason is None:
            return
        await self._audit.append(self._entry(preview, actor, AuditOutcome.REFUSED, problem=reason))
        raise UnconfirmedError(reason, self._dry(preview, actor), is_missing=confirmation is None)

    async def _carry_out(self, change: Change, preview: Preview, actor: Actor) -> ChangeResult:
        # Two lines, joined by their id: a change is not made unless it can be audited, and one that a crash
        # interrupts stays visible as begun.
        begun = self._entry(preview, actor, AuditOutcome.BEGUN)
        await self._audit.append(begun)
        try:
            outcomes = tuple(await change.carry_out(preview))
        except AskError as error:
            outcomes = (Outcome.failed(change.target, error),)
        except ServiceError as error:
            refused = None if isinstance(error, UnavailableError) else ResponseCode.NO_PERMISSION
            outcomes = (Outcome(change.target, ok=False, problem=str(error), code=refused),)
        except BaseException as error:
            await self._end(begun, AuditOutcome.FAILED, f"a fault: {error!r}")
            raise
        how = _summary(outcomes)
        problems = "; ".join(f"{o.subject}: {o.problem}" for o in outcomes if not o.ok)
        await self._end(begun, how, problems or None)
        result = _result(preview, is_dry_run=False, outcomes=outcomes)
        if how is AuditOutcome.FAILED:
            is_refused = all(outcome.code in _REFUSALS for outcome in outcomes)
            raise ChangeFailedError(problems, result, is_refused=is_refused)
        return result

    async def _end(self, begun: AuditEntry, how: AuditOutcome, problem: str | None) -> None:
        """The change is made and stays so: that its end cannot be audited goes to the log only."""
        changed = {"outcome": how, "problem": problem, "ended_at_ms": self._now_ms()}
        try:
            await self._audit.append(begun.model_copy(update=changed))
        except AuditError as error:
            _log.error("the end of %s of %s (%s) is not audited: %s", begun.action, begun.target, how, error)

    def _entry(
        self, preview: Preview, actor: Actor, outcome: AuditOutcome, problem: str | None = None
    ) -> AuditEntry:
        bare = self._bare_entry(preview.action, preview.target, actor, outcome, problem)
        effects = _effect_views(preview)
        return bare.model_copy(update={"effects": effects, "warnings": list(preview.warnings)})

    def _failed_early(self, change: Change, actor: Actor, error: Exception) -> AuditEntry:
        refused = AuditOutcome.REFUSED if isinstance(error, ChangeRefusedError) else AuditOutcome.FAILED
        return self._bare_entry(change.action, change.target, actor, refused, str(error))

    def _bare_entry(
        self, action: Action, target: str, actor: Actor, outcome: AuditOutcome, problem: str | None
    ) -> AuditEntry:
        return AuditEntry(
            id=secrets.token_hex(8),
            at_ms=self._now_ms(),
            actor=actor.name,
            role=actor.role.label,
            remote=actor.remote,
            action=action.value,
            target=target,
            outcome=outcome,
            problem=problem,
        )

    def _now_ms(self) -> int:
        return int(self._now_s() * 1000)


def _summary(outcomes: Sequence[Outcome]) -> AuditOutcome:
    if all(outcome.ok for outcome in outcomes):
        return AuditOutcome.APPLIED
    return AuditOutcome.PARTIAL if any(outcome.ok for outcome in outcomes) else AuditOutcome.FAILED


def _result(
    preview: Preview,
    *,
    is_dry_run: bool,
    confirmation: str | None = None,
    outcomes: Sequence[Outcome] = (),
) -> ChangeResult:
    return ChangeResult(
        action=preview.action.value,
        target=preview.target,
        is_dry_run=is_dry_run,
        is_destructive=preview.is_destructive,
        effects=_effect_views(preview),
        warnings=list(preview.warnings),
        confirmation=confirmation,
        outcomes=[OutcomeView(subject=o.subject, ok=o.ok, problem=o.problem) for o in outcomes],
        is_partial=not all(outcome.ok for outcome in outcomes),
    )


def _effect_views(preview: Preview) -> list[EffectView]:
    """Values of secret keys are masked once more, in case a change forgot to."""
    is_config = preview.action in _OF_CONFIGS
    return [
        EffectView(
            subject=effect.subject,
            before=masked(effect.subject, effect.before) if is_config else effect.before,
            after=masked(effect.subject, effect.after) if is_config else effect.after,
        )
        for effect in preview.effects
    ]


_REFUSALS: Final = frozenset(
    {
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.QUERY_NOT_FOUND,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.INVALID_PARAMETER,
        ResponseCode.CONSUMER_NOT_ONLINE,
    }
)
"""What a broker answers to a request that it understood and will not do."""
_OF_CONFIGS: Final = frozenset({Action.BROKER_CONFIG, Action.NAMESRV_CONFIG})
