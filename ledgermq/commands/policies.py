"""`ledgermq policy`: what users may do with topics, groups and the cluster."""

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ledgermq.app import Subcommands
from ledgermq.calls import Call, path_of, remote
from ledgermq.change_commands import ChangeCall, change
from ledgermq.commands.topics import Brokers
from ledgermq.commands.users import POLICIES, User
from ledgermq.errors import WRONG_USAGE, UserError
from ledgermq.options import PAGE_SIZE, DryRun, Page, PageSize, Yes
from ledgermq.output import Column, Json, show_pages, show_table

if TYPE_CHECKING:
    from pydantic import BaseModel

    from admin_api.changes import Change
    from admin_api.services import Services

app = typer.Typer(
    name="policy",
    help="Policies: what users may do with topics, groups and the cluster.",
    cls=Subcommands,
    no_args_is_help=True,
    add_completion=False,
)
_CUSTOM: Final = "Custom"
_DEFAULT: Final = "Default"
Resources = Annotated[
    list[str],
    typer.Argument(metavar="RESOURCE...", help="Topic:orders, Group:order*, Cluster:DefaultCluster, or *."),
]
Actions = Annotated[
    str,
    typer.Option(help="Pub, Sub, Create, Update, Delete, Get, List or All, with commas between."),
]
Deny = Annotated[bool, typer.Option("--deny", help="Forbid these actions; without it they are allowed.")]
From = Annotated[
    list[str] | None,
    typer.Option("--from", metavar="ADDRESS", help="An address or a network such as 10.0.0.0/8; repeatable."),
]
Default = Annotated[
    bool, typer.Option("--default", help="Of the type Default, which counts where no other matches.")
]


@app.command(name="list")
@remote
def list_policies(
    call: Call,
    user: Annotated[str, typer.Option(metavar="PART", help="A part of the user's name, in any case.")] = "",
    resource: Annotated[str, typer.Option(metavar="PART", help="A part of the resource, in any case.")] = "",
    page: Page = 1,
    page_size: PageSize = PAGE_SIZE,
) -> None:
    """List the policies of all users."""

    async def local(services: "Services") -> "BaseModel":
        from admin_api.access.service import PolicyQuery
        from admin_api.errors import PageWanted

        return await services.access.policies(PolicyQuery(user, resource), PageWanted(page, page_size))

    def render(answer: Json) -> None:
        show_table(answer["items"], (Column("user", "username"), *POLICIES))
        show_pages(answer)

    query: dict[str, object] = {"user": user or None, "resource": resource or None}
    query |= {"page": page, "pageSize": page_size}
    call.show(call.get("/policies", local, query), render)


@app.command()
@remote
def show(call: Call, user: User) -> None:
    """Show the policies of one user."""
    answer = call.get(path_of("policies", user), lambda services: services.access.policies_of(user))
    call.show(answer, lambda view: show_table(view["policies"], POLICIES, view["username"]))


@app.command()
@remote
def create(
    call: Call,
    user: User,
    resources: Resources,
    actions: Actions,
    deny: Deny = False,
    addresses: From = None,
    default: Default = False,
    brokers: Brokers = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Give a user policies: one about each resource."""
    body = _spec(resources, actions, deny, addresses, default, brokers)
    _put(call, user, body, is_new=True, yes=yes, dry_run=dry_run)


@app.command()
@remote
def update(
    call: Call,
    user: User,
    resources: Resources,
    actions: Actions,
    deny: Deny = False,
    addresses: From = None,
    default: Default = False,
    brokers: Brokers = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Replace a user's policies about these resources."""
    body = _spec(resources, actions, deny, addresses, default, brokers)
    _put(call, user, body, is_new=False, yes=yes, dry_run=dry_run)


def _put(call: Call, user: str, body: Json, *, is_new: bool, yes: bool, dry_run: bool) -> None:
    def local(services: "Services") -> "Change":
        from admin_api.access.changes import PolicySpec

        spec = PolicySpec.model_validate(body)
        return services.access_changes.put_policies(user, spec, is_new=is_new)

    method = "POST" if is_new else "PUT"
    wanted = ChangeCall(method, path_of("policies", user), local, body)
    change(call, wanted, yes=yes, dry_run=dry_run)


def _spec(
    resources: list[str],
    actions: str,
    deny: bool,
    addresses: list[str] | None,
    default: bool,
    brokers: list[str] | None,
) -> dict[str, Any]:
    """The body of the request."""
    body: dict[str, Any] = {
        "resources": resources,
        "actions": [action.strip().capitalize() for action in actions.split(",") if action.strip()],
        "sourceIps": addresses or [],
        "decision": "Deny" if deny else "Allow",
        "policyType": _DEFAULT if default else _CUSTOM,
    }
    return body | ({"brokers": brokers} if brokers else {})


@app.command()
@remote
def delete(
    call: Call,
    user: User,
    resource: Annotated[str | None, typer.Argument(metavar="[RESOURCE]")] = None,
    every: Annotated[bool, typer.Option("--all", help="All policies of the user.")] = False,
    default: Default = False,
    brokers: Brokers = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Delete a user's policy about one resource, or all of its policies."""
    if (resource is None) is not every:
        raise UserError("name a RESOURCE, or --all.", WRONG_USAGE)
    kind = _DEFAULT if default else _CUSTOM

    def local(services: "Services") -> "Change":
        from broker.state.access import PolicyType

        return services.access_changes.delete_policies(user, resource, PolicyType(kind), brokers)

    query = {"resource": resource, "policyType": kind, "broker": brokers or None}
    wanted = ChangeCall("DELETE", path_of("policies", user), local, query=query)
    change(call, wanted, yes=yes, dry_run=dry_run)
