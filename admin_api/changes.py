"""Every change of the cluster passes here: preview, confirmation, execution, two lines in the audit log.

A change first describes its effects. A destructive change is only executed with the confirmation that its
preview returned, and only while a new preview still has the same effects.

A confirmation is a MAC over the preview, so the process keeps nothing between preview and execution except
which confirmations have been used.
"""

import asyncio
import hashlib
import hmac
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Final, Protocol
from weakref import WeakValueDictionary

import orjson

from admin_api.audit.log import AuditEntry, AuditLog, Auditor, AuditOutcome
from admin_api.errors import ServiceError, UnavailableError
from admin_api.gateway import AskError, Trouble
from admin_api.schema import ChangeResult, EffectView, OutcomeView
from admin_api.security.masking import masked
from admin_api.security.policy import Actor
from remoting.codes import ResponseCode

CONFIRMATION_TTL_S: Final = 300
CONFIRMATIONS_USED_MAX: Final = 10_000
"""Remembered until they expire; with more in five minutes no further confirmation is taken."""


@dataclass(slots=True)
class Confirmations:
    """Hands out and takes back confirmations. `now_s` is Unix time.

    `seen` is what was confirmed, as JSON can hold it: the same for the same change in the same situation.
    """

    now_s: Callable[[], float]
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    used: dict[str, int] = field(default_factory=dict)

    def issue(self, seen: object, who: str) -> str:
        expires_s = int(self.now_s()) + CONFIRMATION_TTL_S
        nonce = secrets.token_hex(8)
        return f"{expires_s}.{nonce}.{self._mac(seen, who, expires_s, nonce)}"

    def refusal(self, confirmation: str, seen: object, who: str) -> str | None:
        """Why the confirmation does not hold for this, or None, and then it is used up."""
        expires, _, rest = confirmation.partition(".")
        nonce, _, mac = rest.partition(".")
        if not (expires.isascii() and expires.isdigit() and len(expires) <= 12):
            return "this is no confirmation"
        now_s = self.now_s()
        self.used = {known: until_s for known, until_s in self.used.items() if until_s > now_s}
        if int(expires) <= now_s:  # from then on its use is not remembered
            return "the confirmation has expired"
        if not hmac.compare_digest(mac.encode(), self._mac(seen, who, int(expires), nonce).encode()):
            return "the situation changed since the preview"
        if (
            nonce in self.used
        ):  # the MAC covers the nonce as text; the time has several spellings (01300, 1300)
            return "the confirmation was used already"
        if len(self.used) >= CONFIRMATIONS_USED_MAX:
            return f"{CONFIRMATIONS_USED_MAX} confirmations were used in {CONFIRMATION_TTL_S} s; wait"
        self.used[nonce] = int(expires)
        return None

    def _mac(self, seen: object, who: str, expires_s: int, nonce: str) -> str:
        signed = orjson.dumps([who, expires_s, nonce, seen])
        return hmac.new(self.key, signed, hashlib.sha256).hexdigest()


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
    GROUP_WRITES = "replication.writes"
    GROUP_SETTINGS = "replication.settings"
    MEMBER_ADD = "member.add"
    MEMBER_REMOVE = "member.remove"
    MEMBER_REPLACE = "member.replace"
    MEMBER_MOVE = "member.move"
    MEMBER_ROLE = "member.role"
    USER_CREATE = "user.create"
    USER_UPDATE = "user.update"
    USER_DELETE = "user.delete"
    POLICY_CREATE = "policy.create"
    POLICY_UPDATE = "policy.update"
    POLICY_DELETE = "policy.delete"
    ACCESS_SWITCH = "access.switch"
    UPGRADE_FINISH = "upgrade.finish"
    DLQ_EXPORT = "dlq.export"
    """Changes nothing, and takes what people sent out of the house."""
    REQUEST = "request"
    """Refused before it was known as one of those above."""


@dataclass(frozen=True, slots=True)
class Effect:
    """One thing that becomes different: `broker-a/3`, `120`, `57, 63 messages again`. None: unknown, or not
    there."""

    subject: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
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
    the time (an offset of a group that consumes) names here what does matter."""
    left_out: tuple[Trouble, ...] = ()
    """Who may belong to it and cannot be asked: each is a warning now, and a part that was not done then."""

    @cached_property
    def silent(self) -> list[Trouble]:
        """Of those left out the first trouble of each address: a second request words it differently."""
        return list({trouble.address: trouble for trouble in reversed(self.left_out)}.values())[::-1]

    @cached_property
    def all_warnings(self) -> list[str]:
        return [*self.warnings, *(f"left out: {trouble.problem}" for trouble in self.silent)]

    @cached_property
    def effect_views(self) -> list[EffectView]:
        """The effects as they are shown and audited. Values of secret keys are masked once more, in case a
        change forgot to.
        """
        is_config = self.action in _OF_CONFIGS
        return [
            EffectView(
                subject=effect.subject,
                before=masked(effect.subject, effect.before) if is_config else effect.before,
                after=masked(effect.subject, effect.after) if is_config else effect.after,
            )
            for effect in self.effects
        ]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one part of a change went. `problem` is a sentence, `code` what a broker that refused answered;
    `is_refused`: the brokers will not do it in this state, and nothing was changed.
    """

    subject: str
    ok: bool
    problem: str | None = None
    code: int | None = None
    is_refused: bool = False

    @classmethod
    def failed(cls, subject: str, error: AskError) -> "Outcome":
        return cls(subject, False, str(error), error.code, is_refused=error.code in _REFUSALS)


async def outcome_of(subject: str, doing: Awaitable[None]) -> Outcome:
    """Awaits it; an AskError is the outcome's problem."""
    try:
        await doing
    except AskError as error:
        return Outcome.failed(subject, error)
    return Outcome(subject, ok=True)


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
    things stand; otherwise they could not, or did not answer."""

    def __init__(self, reason: str, result: ChangeResult, *, is_refused: bool) -> None:
        super().__init__(reason)
        self.result = result
        self.is_refused = is_refused


class Changes:
    """One per process. Changes to the same target go one after the other."""

    def __init__(self, audit: AuditLog, now_s: Callable[[], float] = time.time) -> None:
        self._auditor = Auditor(audit, now_s)
        self._confirmations = Confirmations(now_s)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def apply(
        self, change: Change, *, dry_run: bool | None, confirmation: str | None, actor: Actor
    ) -> ChangeResult:
        """The preview, or what became of the change. Without `dry_run` a destructive change is only
        previewed.

        Raises: UnconfirmedError, ChangeFailedError, AuditError when the change cannot be audited (then it is
        not made), and what the change's preview raises.
        """
        if dry_run is True:  # a dry run does not block changes
            return self._dry(await change.preview(), actor)
        lock = self._locks.setdefault(change.target, asyncio.Lock())
        async with lock:
            try:
                preview = await change.preview()
            except Exception as error:  # without `dry_run` the change may have been meant
                await self._auditor.append(self._failed_early(change, actor, error))
                raise
            if dry_run is None and preview.is_destructive:
                return self._dry(preview, actor)
            await self._require_confirmed(preview, confirmation, actor)
            return await self._carry_out(change, preview, actor)

    def _dry(self, preview: Preview, actor: Actor) -> ChangeResult:
        token = None
        if preview.is_destructive:
            token = self._confirmations.issue(_essence(preview), actor.name)
        return _result(preview, is_dry_run=True, confirmation=token)

    async def _require_confirmed(self, preview: Preview, confirmation: str | None, actor: Actor) -> None:
        if not preview.is_destructive:
            return
        if confirmation is None:
            reason: str | None = "this change needs the confirmation that its dry run gives"
        else:
            reason = self._confirmations.refusal(confirmation, _essence(preview), actor.name)
        if reason is None:
            return
        await self._auditor.append(self._entry(preview, actor, AuditOutcome.REFUSED, reason))
        raise UnconfirmedError(reason, self._dry(preview, actor), is_missing=confirmation is None)

    async def _carry_out(self, change: Change, preview: Preview, actor: Actor) -> ChangeResult:
        # Two lines, joined by their id: a change is not made unless it can be audited, and one that a crash
        # interrupts stays visible as begun.
        begun = self._entry(preview, actor, AuditOutcome.BEGUN)
        await self._auditor.append(begun)
        try:
            outcomes = (*await _outcomes(change, preview), *map(_left_out, preview.silent))
        except BaseException as error:
            await self._auditor.end(begun, AuditOutcome.FAILED, f"a fault: {error!r}")
            raise
        how = _summary(outcomes)
        problems = _problems(outcomes)
        await self._auditor.end(begun, how, problems or None)
        result = _result(preview, is_dry_run=False, outcomes=outcomes)
        if how is AuditOutcome.FAILED:
            is_refused = all(outcome.is_refused for outcome in outcomes)
            raise ChangeFailedError(problems, result, is_refused=is_refused)
        return result

    def _entry(
        self, preview: Preview, actor: Actor, outcome: AuditOutcome, problem: str | None = None
    ) -> AuditEntry:
        bare = self._auditor.entry(preview.action, preview.target, actor, outcome, problem)
        # Refusals are short, so that a client that asks again and again pushes nothing out of the log.
        if outcome is AuditOutcome.REFUSED:
            return bare.model_copy(update={"effects_total": len(preview.effects)})
        return bare.model_copy(update={"effects": preview.effect_views, "warnings": preview.all_warnings})

    def _failed_early(self, change: Change, actor: Actor, error: Exception) -> AuditEntry:
        refused = AuditOutcome.REFUSED if isinstance(error, ChangeRefusedError) else AuditOutcome.FAILED
        return self._auditor.entry(change.action, change.target, actor, refused, str(error))


async def _outcomes(change: Change, preview: Preview) -> Sequence[Outcome]:
    try:
        return await change.carry_out(preview)
    except AskError as error:
        return (Outcome.failed(change.target, error),)
    except ServiceError as error:
        is_refused = not isinstance(error, UnavailableError)
        return (Outcome(change.target, ok=False, problem=str(error), is_refused=is_refused),)


def _left_out(trouble: Trouble) -> Outcome:
    return Outcome(trouble.address, ok=False, problem=f"left out: {trouble.problem}")


def _essence(preview: Preview) -> object:
    """Which brokers are silent matters, the words of their problem do not."""
    effects = [[effect.subject, effect.before, effect.after] for effect in preview.effects]
    return [
        preview.action.value,
        preview.target,
        preview.is_destructive,
        list(preview.warnings),
        sorted(trouble.address for trouble in preview.silent),
        effects if preview.basis is None else preview.basis,
    ]


def _problems(outcomes: Sequence[Outcome]) -> str:
    """Each problem once, behind all that have it."""
    subjects: dict[str, list[str]] = {}
    for outcome in outcomes:
        if not outcome.ok:
            subjects.setdefault(str(outcome.problem), []).append(outcome.subject)
    return "; ".join(f"{', '.join(having)}: {problem}" for problem, having in subjects.items())


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
        effects=preview.effect_views,
        warnings=preview.all_warnings,
        confirmation=confirmation,
        outcomes=[OutcomeView(subject=o.subject, ok=o.ok, problem=o.problem, code=o.code) for o in outcomes],
        is_partial=not all(outcome.ok for outcome in outcomes),
    )


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


@dataclass(frozen=True, slots=True)
class FunctionChange:
    """`current` and `do` are the `preview` and `carry_out` of admin_api.changes.Change."""

    action: Action
    target: str
    preview_function: Callable[[], Awaitable[Preview]]
    execute: Callable[[Preview], Awaitable[Sequence[Outcome]]]

    async def preview(self) -> Preview:
        return await self.preview_function()

    async def carry_out(self, preview: Preview) -> Sequence[Outcome]:
        return await self.execute(preview)


def settings_outcomes(
    wanted: Mapping[str, str], before: Mapping[str, str], after: Mapping[str, str]
) -> list[Outcome]:
    """One a key, by its value then and now: RocketMQ's own processes accept a value that they cannot use,
    and stay at the one they had. A value may be written in another way than it was given.
    """
    problem = "the broker accepted the request but kept the old value"
    ignored = {key for key, value in wanted.items() if before.get(key) == after.get(key) != value}
    return [Outcome(key, key not in ignored, problem if key in ignored else None) for key in sorted(wanted)]


def unread_outcomes(wanted: Mapping[str, str], silence: AskError) -> list[Outcome]:
    """The same where the current values cannot be read: the result is unknown, not failed."""
    problem = f"the broker accepted the request; whether the value changed is unknown: {silence}"
    return [Outcome(key, ok=False, problem=problem) for key in sorted(wanted)]
