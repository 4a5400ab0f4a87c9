"""`ledgermq user`: users of the brokers' access control. A password is typed, or read from a file or from
stdin: every user of the machine can read a command line.
"""

import os
import stat
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ledgermq.app import Subcommands
from ledgermq.calls import Call, path_of, remote
from ledgermq.change_commands import ChangeCall, change
from ledgermq.commands.topics import Brokers
from ledgermq.errors import WRONG_USAGE, UserError
from ledgermq.options import PAGE_SIZE, DryRun, Page, PageSize, Yes
from ledgermq.output import Column, Json, remark, show_fields, show_pages, show_table

if TYPE_CHECKING:
    from pydantic import BaseModel

    from admin_api.changes import Change
    from admin_api.services import Services

app = typer.Typer(
    name="user",
    help="Users of the brokers: passwords, types, whether they are enabled.",
    cls=Subcommands,
    no_args_is_help=True,
    add_completion=False,
)
FILE_BYTES_MAX: Final = 64 * 1024
_STDIN: Final = "-"
User = Annotated[str, typer.Argument(metavar="USER")]


class Kind(StrEnum):
    """As `userType` of `/api/v1/users`, in lower case."""

    NORMAL = "normal"
    SUPER = "super"


KindOption = Annotated[
    Kind | None, typer.Option("--type", help="A super user may do everything.", show_default=False)
]
PasswordFile = Annotated[
    str | None,
    typer.Option(
        "--password-file",
        metavar="FILE",
        help="Its first line is the password; - is stdin. Without it the terminal asks.",
        show_default=False,
    ),
]
ROWS = (
    Column("user", "username"),
    Column("type", "userType", nothing="differs"),
    Column("status", "userStatus", nothing="differs"),
    Column("on", "places"),
    Column("missing on", lambda row: row["missingPlaces"] or None, nothing="-"),
)
POLICIES = (
    Column("resource", "resource"),
    Column("decision", "decision"),
    Column("actions", "actions"),
    Column("from", lambda row: row["sourceIps"] or "anywhere"),
    Column("type", "policyType"),
    Column("on", "places"),
)


@app.command(name="list")
@remote
def list_users(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="[PART]", help="A part of the name, in any case.")] = "",
    kind: KindOption = None,
    page: Page = 1,
    page_size: PageSize = PAGE_SIZE,
) -> None:
    """List the users of all brokers."""

    async def local(services: "Services") -> "BaseModel":
        from admin_api.access.service import UserQuery
        from admin_api.errors import PageWanted
        from broker.state.access import UserType, by_name

        query = UserQuery(name, None if kind is None else by_name(UserType, kind.value))
        return await services.access.users(query, PageWanted(page, page_size))

    def render(answer: Json) -> None:
        show_table(answer["items"], ROWS)
        show_pages(answer)

    query: dict[str, object] = {"name": name or None, "userType": _type_of(kind)}
    query |= {"page": page, "pageSize": page_size}
    call.show(call.get("/users", local, query), render)


@app.command()
@remote
def show(call: Call, user: User) -> None:
    """Show a user and its policies."""
    answer = call.get(path_of("users", user), lambda services: services.access.user(user))

    def render(view: Json) -> None:
        fields = {column.head: column.of(view) for column in ROWS[1:4]}
        if view["missingPlaces"]:
            fields["missing on"] = view["missingPlaces"]
        show_fields(fields, view["username"])
        show_table(view["policies"], POLICIES, "\npolicies")

    call.show(answer, render)


@app.command()
@remote
def create(
    call: Call,
    user: User,
    kind: KindOption = None,
    disabled: Annotated[bool, typer.Option("--disabled", help="It may not sign yet.")] = False,
    password_file: PasswordFile = None,
    brokers: Brokers = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Create a user on all brokers, or those named."""
    status = "disable" if disabled else None
    body = {"username": user, "password": read_password(password_file), **_spec(kind, status, brokers)}

    def local(services: "Services") -> "Change":
        from admin_api.access.changes import NewUser

        return services.access_changes.create_user(NewUser.model_validate(body))

    change(call, ChangeCall("POST", "/users", local, body), yes=yes, dry_run=dry_run)


@app.command()
@remote
def update(
    call: Call,
    user: User,
    kind: KindOption = None,
    enabled: Annotated[bool | None, typer.Option("--enable/--disable", help="Whether it may sign.")] = None,
    new_password: Annotated[
        bool, typer.Option("--new-password", help="The terminal asks for another password.")
    ] = False,
    password_file: PasswordFile = None,
    brokers: Brokers = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Change a user's password, its type, or whether it is enabled."""
    status = None if enabled is None else "enable" if enabled else "disable"
    body = _spec(kind, status, brokers)
    if new_password or password_file is not None:
        body["password"] = read_password(password_file)
    if not body.keys() - {"brokers"}:
        raise UserError("what is to change? See `ledgermq user update --help`.", WRONG_USAGE)

    def local(services: "Services") -> "Change":
        from admin_api.access.changes import UserSpec

        return services.access_changes.update_user(user, UserSpec.model_validate(body))

    change(call, ChangeCall("PATCH", path_of("users", user), local, body), yes=yes, dry_run=dry_run)


@app.command()
@remote
def delete(
    call: Call, user: User, brokers: Brokers = None, yes: Yes = False, dry_run: DryRun = False
) -> None:
    """Delete a user with its policies."""
    wanted = ChangeCall(
        "DELETE",
        path_of("users", user),
        lambda services: services.access_changes.delete_user(user, brokers),
        query={"broker": brokers or None},
    )
    change(call, wanted, yes=yes, dry_run=dry_run)


def _spec(kind: Kind | None, status: str | None, brokers: list[str] | None) -> dict[str, Any]:
    """The body of a request, with what was given."""
    body = {"userType": _type_of(kind), "userStatus": status, "brokers": brokers or None}
    return {name: value for name, value in body.items() if value is not None}


def _type_of(kind: Kind | None) -> str | None:
    return None if kind is None else kind.value.capitalize()


def read_password(file: str | None) -> str:
    """From the file, from stdin, or typed twice at the terminal. Raises: UserError."""
    if file is None:
        return _typed()
    try:
        if file == _STDIN:
            data = sys.stdin.buffer.read(FILE_BYTES_MAX + 1)
        else:
            with Path(file).open("rb") as opened:
                mode = os.fstat(opened.fileno()).st_mode
                data = opened.read(FILE_BYTES_MAX + 1)
            if mode & (stat.S_IRWXG | stat.S_IRWXO):
                remark(f"warning: other users of this machine can read {file}: chmod 600 it.")
        password = data.split(b"\n", 1)[0].removesuffix(b"\r").decode()
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}.", WRONG_USAGE) from error
    except UnicodeDecodeError:
        raise UserError("the password is not UTF-8.", WRONG_USAGE) from None
    if not password or len(data) > FILE_BYTES_MAX:
        source = "stdin" if file == _STDIN else file
        raise UserError(f"the first line of {source} is no password.", WRONG_USAGE)
    return password


def _typed() -> str:
    """Raises: UserError."""
    if not sys.stdin.isatty():
        raise UserError("a password is needed: --password-file FILE, or - for stdin.", WRONG_USAGE)
    import getpass

    password = getpass.getpass("Password: ")
    if not password:
        raise UserError("nothing was typed.", WRONG_USAGE)
    if getpass.getpass("The same again: ") != password:
        raise UserError("the two passwords differ.", WRONG_USAGE)
    return password
