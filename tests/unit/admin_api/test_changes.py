"""What is between wanting a change and its being made: preview, confirmation, audit."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from admin_api.audit.log import AuditEntry, AuditError, AuditLog, AuditOutcome
from admin_api.changes import (
    CONFIRMATION_TTL_S,
    Action,
    ChangeFailedError,
    ChangeRefusedError,
    Changes,
    Effect,
    Outcome,
    Preview,
    UnconfirmedError,
)
from admin_api.errors import NotFoundError, UnavailableError
from admin_api.gateway import AskError, Trouble
from admin_api.schema import ChangeResult
from admin_api.security.policy import Actor, Role
from tests.unit.admin_api.change_samples import OPERATOR, SampleChange


class Clock:
    def __init__(self) -> None:
        self.s = 1_000.0

    def __call__(self) -> float:
        return self.s


class Desk:
    """Changes over an audit log in memory and a clock that stands."""

    def __init__(self, audit: AuditLog | None = None) -> None:
        self.clock = Clock()
        self.audit = audit or AuditLog(None)
        self.changes = Changes(self.audit, self.clock)

    async def dry_run(self, change: SampleChange) -> str:
        result = await self.changes.apply(change, dry_run=True, confirmation=None, actor=OPERATOR)
        assert result.is_dry_run
        assert result.confirmation is not None
        return result.confirmation

    async def make(
        self, change: SampleChange, confirmation: str | None = None, actor: Actor = OPERATOR
    ) -> ChangeResult:
        return await self.changes.apply(change, dry_run=False, confirmation=confirmation, actor=actor)

    async def audited(self) -> list[AuditEntry]:
        return (await self.audit.newest(0, 100))[0]


async def test_a_destructive_change_is_previewed_only_unless_told() -> None:
    desk, change = Desk(), SampleChange()
    result = await desk.changes.apply(change, dry_run=None, confirmation=None, actor=OPERATOR)
    (effect,) = result.effects
    assert (effect.subject, effect.before, effect.after) == ("broker-a/3", "120", "57")
    assert (result.is_dry_run, change.done, await desk.audited()) == (True, [], [])


async def test_a_confirmed_change_is_made_and_audited() -> None:
    desk, change = Desk(), SampleChange()
    result = await desk.make(change, await desk.dry_run(change))
    assert (result.is_dry_run, result.is_partial, [o.ok for o in result.outcomes]) == (False, False, [True])
    assert len(change.done) == 1
    (entry,) = await desk.audited()
    assert entry.outcome is AuditOutcome.APPLIED
    assert (entry.actor, entry.role, entry.remote) == ("operator", "operate", "127.0.0.1")
    assert (entry.action, entry.target, entry.at_ms) == ("offset.reset", "group-a of topic-a", 1_000_000)
    assert entry.effects[0].after == "57"


async def test_what_loses_nothing_needs_no_confirmation() -> None:
    desk, change = Desk(), SampleChange(is_destructive=False)
    result = await desk.changes.apply(change, dry_run=None, confirmation=None, actor=OPERATOR)
    assert (result.is_dry_run, len(change.done)) == (False, 1)


async def test_without_confirmation_nothing_is_made() -> None:
    desk, change = Desk(), SampleChange()
    with pytest.raises(UnconfirmedError) as caught:
        await desk.make(change)
    assert (caught.value.is_missing, change.done) == (True, [])
    await desk.make(change, caught.value.result.confirmation)
    assert [entry.outcome for entry in await desk.audited()] == ["applied", "refused"]


async def test_who_is_refused_again_and_again_fills_no_log() -> None:
    desk, change = Desk(), SampleChange()
    with pytest.raises(UnconfirmedError):
        await desk.make(change)
    (entry,) = await desk.audited()
    assert (entry.outcome, entry.effects, entry.effects_total, entry.warnings) == ("refused", [], 1, [])


async def test_who_only_looks_holds_nobody_up() -> None:
    desk, change = Desk(), SampleChange()
    confirmation = await desk.dry_run(change)
    looks, goes_on = asyncio.Event(), asyncio.Event()

    class SlowLook(SampleChange):
        async def preview(self) -> Preview:
            looks.set()
            await goes_on.wait()
            return await super().preview()

    looking = asyncio.create_task(desk.dry_run(SlowLook()))
    async with asyncio.timeout(20):
        await looks.wait()
        await desk.make(change, confirmation)
        goes_on.set()
        await looking


async def test_a_situation_that_changed_needs_a_new_confirmation() -> None:
    desk, change = Desk(), SampleChange()
    confirmation = await desk.dry_run(change)
    change.at = 140
    with pytest.raises(UnconfirmedError, match="situation changed") as caught:
        await desk.make(change, confirmation)
    assert caught.value.result.effects[0].before == "140"
    assert change.done == []


async def test_effects_that_move_all_the_time_may_move() -> None:
    desk, change = Desk(), SampleChange(basis="to the end")
    confirmation = await desk.dry_run(change)
    change.at = 140
    await desk.make(change, confirmation)
    assert change.done[0].effects[0].before == "140"
    confirmation = await desk.dry_run(change)
    change.basis = "to the beginning"
    with pytest.raises(UnconfirmedError, match="situation changed"):
        await desk.make(change, confirmation)


async def test_a_confirmation_holds_once_for_one_person_and_five_minutes() -> None:
    desk, change = Desk(), SampleChange()
    confirmation = await desk.dry_run(change)
    with pytest.raises(UnconfirmedError, match="situation changed"):
        await desk.make(change, confirmation, Actor("another", Role.ADMIN, "127.0.0.1"))
    await desk.make(change, confirmation)
    for spelling in (confirmation, f"0{confirmation}", f"00{confirmation}"):
        with pytest.raises(UnconfirmedError, match="used already"):
            await desk.make(change, spelling)
    late = await desk.dry_run(change)
    desk.clock.s += CONFIRMATION_TTL_S
    with pytest.raises(UnconfirmedError, match="expired"):
        await desk.make(change, late)
    assert len(change.done) == 1


@pytest.mark.parametrize("confirmation", ["", ".", "99999.x", "x" * 200, "9" * 100, "é.é.é", "٣.a.b"])
async def test_a_made_up_confirmation_is_none(confirmation: str) -> None:
    desk, change = Desk(), SampleChange()
    with pytest.raises(UnconfirmedError):
        await desk.make(change, confirmation)
    assert change.done == []


async def test_the_confirmation_of_another_process_is_none() -> None:
    confirmation = await Desk().dry_run(SampleChange())
    with pytest.raises(UnconfirmedError):
        await Desk().make(SampleChange(), confirmation)


@pytest.mark.parametrize(
    ("outcomes", "said"),
    [
        ([Outcome("a", ok=True), Outcome("b", ok=False, problem="no answer")], AuditOutcome.PARTIAL),
        ([Outcome("a", ok=True)], AuditOutcome.APPLIED),
        ([], AuditOutcome.APPLIED),
    ],
)
async def test_what_became_of_the_parts_is_told(outcomes: Sequence[Outcome], said: AuditOutcome) -> None:
    desk, change = Desk(), SampleChange(is_destructive=False, outcomes=outcomes)
    result = await desk.make(change)
    assert result.is_partial == (said is AuditOutcome.PARTIAL)
    (entry,) = await desk.audited()
    assert entry.outcome is said
    assert entry.problem == ("b: no answer" if result.is_partial else None)


@pytest.mark.parametrize(
    "change",
    [
        SampleChange(is_destructive=False, outcomes=[Outcome("a", ok=False, problem="no answer")]),
        SampleChange(is_destructive=False, error=AskError("a", "no answer")),
    ],
)
async def test_a_change_of_which_nothing_was_done_failed(change: SampleChange) -> None:
    desk = Desk()
    with pytest.raises(ChangeFailedError, match="no answer") as caught:
        await desk.make(change)
    assert [outcome.ok for outcome in caught.value.result.outcomes] == [False]
    assert [entry.outcome for entry in await desk.audited()] == [AuditOutcome.FAILED]


@pytest.mark.parametrize(
    ("error", "is_refused"),
    [
        (AskError("a", "no such topic", code=17), True),
        (AskError("a", "a fault", code=1), False),
        (AskError("a", "no answer"), False),
        (ChangeRefusedError("no"), True),
        (NotFoundError("gone"), True),
        (UnavailableError("silent"), False),
    ],
)
async def test_a_refusal_is_no_failure_of_the_brokers(error: Exception, is_refused: bool) -> None:
    with pytest.raises(ChangeFailedError) as caught:
        await Desk().make(SampleChange(is_destructive=False, error=error))
    assert caught.value.is_refused is is_refused


async def test_a_fault_in_the_middle_is_audited() -> None:
    desk, change = Desk(), SampleChange(is_destructive=False, error=ZeroDivisionError("here"))
    with pytest.raises(ZeroDivisionError):
        await desk.make(change)
    (entry,) = await desk.audited()
    assert (entry.outcome, "here" in (entry.problem or "")) == (AuditOutcome.FAILED, True)


@pytest.mark.parametrize("dry_run", [False, None])
async def test_a_change_that_makes_no_sense_is_audited_unless_it_was_a_dry_run(dry_run: bool | None) -> None:
    desk, change = Desk(), SampleChange(preview_error=ChangeRefusedError("there is no such queue"))
    with pytest.raises(ChangeRefusedError):
        await desk.changes.apply(change, dry_run=True, confirmation=None, actor=OPERATOR)
    assert await desk.audited() == []
    with pytest.raises(ChangeRefusedError):
        await desk.changes.apply(change, dry_run=dry_run, confirmation=None, actor=OPERATOR)
    (entry,) = await desk.audited()
    assert (entry.outcome, entry.problem) == (AuditOutcome.REFUSED, "there is no such queue")


async def test_what_cannot_be_audited_is_not_made(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path / "audit.jsonl")
    audit.close()
    change = SampleChange(is_destructive=False)
    with pytest.raises(AuditError):
        await Desk(audit).make(change)
    assert change.done == []


SILENT = Trouble("10.0.0.2:10911", "10.0.0.2:10911: no answer within 1 s")
ALONE = Trouble(SILENT.address, "10.0.0.2:10911 is left alone for a moment")


async def test_who_is_silent_is_a_part_that_was_not_done() -> None:
    desk, change = Desk(), SampleChange(left_out=(SILENT, ALONE))
    result = await desk.make(change, await desk.dry_run(change))
    done, silent = result.outcomes
    assert (done.ok, silent.ok, silent.subject) == (True, False, SILENT.address)
    assert (result.is_partial, result.warnings) == (True, [f"left out: {SILENT.problem}"])
    (entry,) = await desk.audited()
    assert (entry.outcome, entry.problem) == ("partial", f"{SILENT.address}: left out: {SILENT.problem}")


async def test_who_is_silent_is_confirmed_too_in_whatever_words() -> None:
    desk, change = Desk(), SampleChange(left_out=(SILENT,))
    confirmation = await desk.dry_run(change)
    change.left_out = (ALONE,)
    await desk.make(change, confirmation)
    confirmation = await desk.dry_run(change)
    change.left_out = ()
    with pytest.raises(UnconfirmedError, match="situation changed"):
        await desk.make(change, confirmation)
    assert len(change.done) == 1


async def test_where_all_are_silent_nothing_was_done() -> None:
    desk, change = Desk(), SampleChange(is_destructive=False, outcomes=(), left_out=(SILENT,))
    with pytest.raises(ChangeFailedError) as caught:
        await desk.make(change)
    assert (caught.value.is_refused, caught.value.result.outcomes[0].subject) == (False, SILENT.address)


async def test_a_code_is_what_a_broker_answered() -> None:
    desk = Desk()
    for error, code in ((AskError("a", "no", code=17), 17), (ChangeRefusedError("no"), None)):
        with pytest.raises(ChangeFailedError) as caught:
            await desk.make(SampleChange(is_destructive=False, error=error))
        assert ([o.code for o in caught.value.result.outcomes], caught.value.is_refused) == ([code], True)


class ConfigChange(SampleChange):
    """Puts a password into the configuration, and forgets to mask it."""

    async def preview(self) -> Preview:
        return Preview(Action.BROKER_CONFIG, self.target, (Effect("adminPassword", None, "hunter2"),))


async def test_the_value_of_a_secret_key_is_neither_shown_nor_audited() -> None:
    desk = Desk()
    result = await desk.make(ConfigChange(action=Action.BROKER_CONFIG))
    (entry,) = await desk.audited()
    assert "hunter2" not in result.model_dump_json() + entry.model_dump_json()
