"""Changes from the command line: the command shows the effects, the user confirms, then the change is made.

Without --admin this process makes the change in the name of its user, and no audit log of a service has it.
"""

import inspect
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import orjson
import typer

from ledgermq.calls import Call, checked, sentence
from ledgermq.errors import NOT_DONE, PARTIAL, WRONG_USAGE, UserError
from ledgermq.output import Column, Json, print_json, printable, remark, show_table

if TYPE_CHECKING:
    from admin_api.changes import Change, Changes
    from admin_api.services import Services

_EFFECTS = (
    Column("what", "subject"),
    Column("before", "before", nothing="-"),
    Column("after", "after", nothing="-"),
)


@dataclass(frozen=True, slots=True)
class ChangeCall:
    """A change: as a request to `/api/v1{path}`, and as a function `local` that makes it in this process."""

    method: str
    path: str
    local: "Callable[[Services], Change | Awaitable[Change]]"
    body: object | None = None
    query: Mapping[str, object] | None = None


class RefusedError(UserError):
    """The change was not made; `result` has the present preview, or the outcome of each part."""

    def __init__(self, words: str, result: Json | None) -> None:
        super().__init__(words)
        self.result = result


class _Way(Protocol):
    """How a change is requested. Raises: UserError, RefusedError."""

    def __call__(self, dry_run: bool | None, confirmation: str | None) -> Json: ...


def change(call: Call, wanted: ChangeCall, *, yes: bool, dry_run: bool) -> None:
    """Preview the change if data may be lost, ask for confirmation, make the change, and print the result.

    Raises: UserError; typer.Exit when a part of it was not done.
    """
    ask: _Way = _over_http(call, wanted) if call.admin is not None else _in_process(call, wanted)
    try:
        result = ask(True if dry_run else None, None)
        if result["isDryRun"] and not dry_run:
            _require_yes(call, result, yes=yes)
            result = ask(False, result["confirmation"])
    except RefusedError as error:
        if error.result is not None:
            _print(call, error.result, is_refused=True)
        raise
    _print(call, result)
    if result["isPartial"]:
        raise typer.Exit(PARTIAL)


def _require_yes(call: Call, preview: Json, *, yes: bool) -> None:
    """Raises: UserError when there is no terminal to ask at; typer.Exit when the answer is no."""
    if yes:
        return
    if call.as_json or not sys.stdin.isatty():
        raise UserError("this needs --yes; --dry-run shows what it would do.", WRONG_USAGE)
    show_result(preview)
    if input("Type yes to do it: ").strip().lower() != "yes":
        remark("Nothing was done.")
        raise typer.Exit(NOT_DONE)


def _print(call: Call, result: Json, *, is_refused: bool = False) -> None:
    if call.as_json:
        print_json(result)
    else:
        show_result(result, is_refused=is_refused)


def show_result(result: Json, *, is_refused: bool = False) -> None:
    """Print effects, warnings and failed parts. The reason of a full refusal follows as an error."""
    title = f"{result['action']} {result['target']}"
    effects = result["effects"]
    if result["outcomes"] and all(outcome["ok"] for outcome in result["outcomes"]):
        title += ": done"
    elif result["isDryRun"]:
        title += ": would change" if effects else ": would change nothing"
    if effects:
        show_table(effects, _EFFECTS, printable(title))
    else:
        print(printable(title))
    for warning in result["warnings"]:
        remark(f"warning: {warning}")
    if not is_refused:
        _show_outcomes(result)


def _show_outcomes(result: Json) -> None:
    """Print the parts that failed, and those that succeeded but are not named by an effect."""
    named = [result["target"], *(effect["subject"] for effect in result["effects"])]
    for outcome in result["outcomes"]:
        subject = outcome["subject"]
        if not outcome["ok"]:
            remark(f"not done: {subject}: {outcome['problem']}")
        elif not any(each == subject or each.startswith(f"{subject}: ") for each in named):
            print(printable(f"done: {subject}"))


def _over_http(call: Call, wanted: ChangeCall) -> _Way:
    from ledgermq.api_client import ProblemAnswerError

    client = call.service

    def ask(dry_run: bool | None, confirmation: str | None) -> Json:
        query = {**(wanted.query or {}), "dryRun": dry_run, "confirmation": confirmation}
        try:
            answer: Json = client.call(wanted.method, wanted.path, query, wanted.body)
        except ProblemAnswerError as error:
            if error.result is None:
                raise
            raise RefusedError(str(error), error.result) from error
        return answer

    return ask


def _in_process(call: Call, wanted: ChangeCall) -> _Way:
    import asyncio

    from admin_api.audit.log import AuditLog
    from admin_api.changes import Changes

    changes = Changes(AuditLog(None))

    def ask(dry_run: bool | None, confirmation: str | None) -> Json:
        answer: Json = orjson.loads(asyncio.run(_apply(call, wanted, changes, dry_run, confirmation)))
        return answer

    return ask


async def _apply(
    call: Call, wanted: ChangeCall, changes: "Changes", dry_run: bool | None, confirmation: str | None
) -> str:
    from admin_api.changes import ChangeFailedError, ChangeRefusedError, UnconfirmedError
    from admin_api.security.policy import Actor, Role

    async def ask(services: "Services") -> Any:
        made = wanted.local(services)
        change: Change = await made if inspect.isawaitable(made) else made
        actor = Actor(_user(), Role.ADMIN, "local")
        return await changes.apply(change, dry_run=dry_run, confirmation=confirmation, actor=actor)

    try:
        return await checked(call.namesrv, ask)
    except ChangeRefusedError as error:
        raise UserError(sentence(error)) from error
    except (UnconfirmedError, ChangeFailedError) as error:
        result: Json = orjson.loads(error.result.model_dump_json(by_alias=True))
        raise RefusedError(f"not done: {sentence(error)}", result) from error


def _user() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "local"
