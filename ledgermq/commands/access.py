"""`ledgermq access`: whether brokers check who sends a request, and what its user may do."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ledgermq.app import Subcommands
from ledgermq.calls import Call, remote
from ledgermq.change_commands import ChangeCall, change
from ledgermq.commands.topics import Brokers
from ledgermq.errors import WRONG_USAGE, UserError
from ledgermq.options import DryRun, Yes
from ledgermq.output import Column, Json, number, remark, show_table

if TYPE_CHECKING:
    from admin_api.changes import Change
    from admin_api.services import Services

app = typer.Typer(
    name="access",
    help="Access control: whether it is on.",
    cls=Subcommands,
    no_args_is_help=True,
    add_completion=False,
)
_CHECKS = {
    "off": "nothing",
    "accounts": "accounts of plain_acl.yml",
    "authentication": "signatures",
    "authorization": "signatures and policies",
}
_PLACES = (
    Column("broker", "place"),
    Column("address", "address"),
    Column("checks", lambda row: _CHECKS[row["mode"]]),
    number("users", "userCount"),
    number("super users", "superUserCount"),
    Column("can be switched", "canSwitch"),
)


@app.command()
@remote
def show(call: Call) -> None:
    """Show what each broker checks, and how many users it has."""

    def render(answer: Json) -> None:
        show_table(answer["places"], _PLACES)
        for place in answer["places"]:
            if place["remedy"] is not None:
                remark(f"{place['place']}: {place['remedy']}")
        if answer["isPartial"] and not answer["isSigning"]:
            remark(
                "These requests are not signed (LEDGERMQ_ACCESS_KEY): brokers that check users refuse them."
            )

    call.show(call.get("/access", lambda services: services.access.state()), render)


@app.command(name="set")
@remote
def switch(
    call: Call,
    authentication: Annotated[
        bool | None,
        typer.Option("--authentication/--no-authentication", help="Check the signatures of users."),
    ] = None,
    authorization: Annotated[
        bool | None,
        typer.Option("--authorization/--no-authorization", help="Check their policies, too."),
    ] = None,
    brokers: Brokers = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Switch access control on or off while the brokers run, after showing what clients will notice."""
    given = {"authenticationEnabled": authentication, "authorizationEnabled": authorization}
    body: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if not body:
        raise UserError("what is to change? See `ledgermq access set --help`.", WRONG_USAGE)
    body |= {"brokers": brokers} if brokers else {}

    def local(services: "Services") -> "Change":
        from admin_api.access.switching import AccessSwitch

        return services.access_switches.switch(AccessSwitch.model_validate(body))

    change(call, ChangeCall("PATCH", "/access", local, body), yes=yes, dry_run=dry_run)
