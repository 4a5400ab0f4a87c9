"""`ledgermq group`: consumer groups."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ledgermq.app import Subcommands
from ledgermq.calls import Call, path_of, remote
from ledgermq.change_commands import ChangeCall, change
from ledgermq.commands.topics import Brokers
from ledgermq.errors import UserError
from ledgermq.options import PAGE_SIZE, DryRun, Page, PageSize, Yes
from ledgermq.output import Column, Json, moment, number, printable, show_fields, show_pages, show_table

if TYPE_CHECKING:
    from pydantic import BaseModel

    from admin_api.changes import Change
    from admin_api.services import Services

app = typer.Typer(
    name="group",
    help="Consumer groups: lag, members, settings.",
    cls=Subcommands,
    no_args_is_help=True,
    add_completion=False,
)
Group = Annotated[str, typer.Argument(metavar="GROUP")]


class Sort(StrEnum):
    """As `sort` of `/api/v1/consumer-groups`."""

    NAME = "name"
    LAG = "lag"
    MEMBERS = "members"
    RATE = "rate"


ROWS = (
    Column("group", "group"),
    Column("state", "presence"),
    number("members", "members"),
    number("lag", "lag"),
    number("messages/s", "consumeTps"),
    Column("model", "messageModel", nothing="-"),
    Column("brokers", "brokers"),
)
_MEMBERS = (
    Column("client", "clientId"),
    Column("address", "address"),
    Column("language", "language"),
    Column("version", "version"),
    Column("brokers", "brokers"),
)
_SUBSCRIPTIONS = (
    Column("topic", "topic"),
    Column("expression", "expression"),
    Column("type", "expressionType"),
)
_QUEUES = (
    Column("topic", "topic"),
    Column("broker", "brokerName"),
    number("queue", "queueId"),
    Column("client", "clientId", nothing="-"),
    number("cached", "cachedMessages"),
    number("unacknowledged", "unacknowledged"),
    Column("last pull", lambda row: moment(row["lastPullAtMs"]), nothing="-"),
    Column("last consumed", lambda row: moment(row["lastConsumeAtMs"]), nothing="-"),
)


@app.command(name="list")
@remote
def list_groups(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="[PART]", help="A part of the name, in any case.")] = "",
    sort: Annotated[Sort, typer.Option(help="Largest value first; names from A.")] = Sort.NAME,
    system: Annotated[bool, typer.Option("--system", help="RocketMQ's own groups, too.")] = False,
    page: Page = 1,
    page_size: PageSize = PAGE_SIZE,
) -> None:
    """List consumer groups with their lag and members."""
    is_descending = sort is not Sort.NAME

    async def local(services: "Services") -> "BaseModel":
        from admin_api.errors import PageWanted
        from admin_api.groups.overview import GroupSort
        from admin_api.groups.service import GroupQuery

        query = GroupQuery(name, GroupSort(sort.value), is_descending, system)
        return await services.consumer_groups.find(query, PageWanted(page, page_size))

    def render(answer: Json) -> None:
        show_table(answer["items"], ROWS)
        show_pages(answer)

    query: dict[str, object] = {
        "name": name or None,
        "sort": sort.value,
        "descending": is_descending,
        "system": system,
    }
    query |= {"page": page, "pageSize": page_size}
    call.show(call.get("/consumer-groups", local, query), render)


@app.command()
@remote
def show(call: Call, group: Group) -> None:
    """Show a group's lag, settings and members. Its offsets: `ledgermq offset show`."""
    answer = call.get(
        path_of("consumer-groups", group), lambda services: services.consumer_groups.view(group)
    )
    call.show(answer, _show_group)


def _show_group(answer: Json) -> None:
    fields = {
        "state": answer["presence"],
        "lag": answer["lag"],
        "queues without an offset": answer["unknownQueues"],
        "messages/s": answer["consumeTps"],
        "model": answer["messageModel"],
        "type": answer["consumeType"],
        "popped, not acknowledged": answer["popInFlight"],
    }
    show_fields(fields, answer["group"])
    for broker in answer["brokers"]:
        settings = broker["settings"]
        show_fields(settings or {"settings": "it does not have the group"}, f"\non {broker['brokerName']}")
    _show_members(answer)


def _show_members(answer: Json) -> None:
    members = answer["members"]
    show_table(members, _MEMBERS, "members" if members is None else f"{len(members)} members")
    show_table(answer["subscriptions"], _SUBSCRIPTIONS, "subscriptions")


@app.command()
@remote
def members(call: Call, group: Group) -> None:
    """Show who of a group is connected, and what they are subscribed to."""
    path = path_of("consumer-groups", group, "members")
    answer = call.get(path, lambda services: services.consumer_groups.members(group))
    call.show(answer, _show_members)


@app.command()
@remote
def running(
    call: Call,
    group: Group,
    client: Annotated[
        str | None, typer.Argument(metavar="[CLIENT]", help="Which member; not needed if there is only one.")
    ] = None,
    stack: Annotated[bool, typer.Option("--stack", help="What its threads do (Java clients).")] = False,
) -> None:
    """Show a consumer's own report: its queues, the messages it holds, its rates."""
    client_id = client or _only_member(call, group)
    answer = call.get(
        path_of("consumer-groups", group, "members", client_id, "running"),
        lambda services: services.consumer_groups.running(group, client_id, with_stack=stack),
        {"stack": stack},
    )

    def render(view: Json) -> None:
        show_fields(view["properties"], f"{view['clientId']} through {view['brokerName']}")
        show_table(view["queues"], _QUEUES)
        if view["stack"]:
            print(printable(view["stack"]))

    call.show(answer, render)


def _only_member(call: Call, group: str) -> str:
    path = path_of("consumer-groups", group, "members")
    view = call.get(path, lambda services: services.consumer_groups.members(group))
    if view["members"] is None:
        raise UserError(f"no broker reports connected consumers of {group}.")
    ids = [str(member["clientId"]) for member in view["members"]]
    if len(ids) == 1:
        return ids[0]
    if not ids:
        raise UserError(f"no consumer of {group} is connected.")
    raise UserError(f"{group} has {len(ids)} members: name one of {', '.join(ids)}.")


@app.command()
@remote
def create(
    call: Call,
    group: Group,
    enabled: Annotated[
        bool | None, typer.Option("--enable/--disable", help="Whether it may consume.")
    ] = None,
    retry_max: Annotated[
        int | None, typer.Option(min=-1, help="Tries before a message is a dead letter.")
    ] = None,
    retry_queues: Annotated[
        int | None, typer.Option(min=0, max=1024, help="Queues of its retry topic.")
    ] = None,
    orderly: Annotated[bool | None, typer.Option("--orderly/--concurrent", help="How POP hands out.")] = None,
    broadcast: Annotated[
        bool | None, typer.Option("--broadcast/--no-broadcast", help="Whether its consumers may broadcast.")
    ] = None,
    brokers: Brokers = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Create a consumer group, or change the given settings of an existing one (`edit` is the same)."""
    given: dict[str, Any] = {
        "consumeEnabled": enabled,
        "retryMaxTimes": retry_max,
        "retryQueues": retry_queues,
        "isOrderly": orderly,
        "consumeBroadcastEnabled": broadcast,
        "brokers": brokers or None,
    }
    body = {name: value for name, value in given.items() if value is not None}

    def local(services: "Services") -> "Change":
        from admin_api.groups.changes import GroupSettingsChange

        return services.consumer_groups.put(group, GroupSettingsChange.model_validate(body))

    wanted = ChangeCall("PUT", path_of("consumer-groups", group), local, body)
    change(call, wanted, yes=yes, dry_run=dry_run)


app.command(name="edit")(create)


@app.command()
@remote
def delete(
    call: Call,
    group: Group,
    keep_offsets: Annotated[
        bool, typer.Option("--keep-offsets", help="If created again, it continues at its old offsets.")
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Delete a consumer group, after showing what is lost."""
    wanted = ChangeCall(
        "DELETE",
        path_of("consumer-groups", group),
        lambda services: services.consumer_groups.delete(group, with_offsets=not keep_offsets),
        query={"withOffsets": not keep_offsets},
    )
    change(call, wanted, yes=yes, dry_run=dry_run)
