"""`ledgermq offset`: shows and changes the offsets of consumer groups."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ledgermq.app import Subcommands
from ledgermq.calls import Call, path_of, remote
from ledgermq.change_commands import ChangeCall, change
from ledgermq.commands.groups import Group
from ledgermq.errors import WRONG_USAGE, UserError
from ledgermq.options import FORMS, DryRun, Yes, parse_moment_ms
from ledgermq.output import Column, Json, duration, moment, number, show_table

if TYPE_CHECKING:
    from admin_api.changes import Change
    from admin_api.services import Services

app = typer.Typer(
    name="offset",
    help="Offsets of consumer groups: show, reset, skip, clone. Changes are shown first.",
    cls=Subcommands,
    no_args_is_help=True,
    add_completion=False,
)
OneTopic = Annotated[
    str | None,
    typer.Option("--topic", metavar="TOPIC", help="Only this one.", show_default="all it consumes"),
]
Queues = Annotated[
    list[str] | None,
    typer.Option(
        "--queue", metavar="BROKER/ID", help="Only this queue; may be repeated.", show_default="all"
    ),
]
_QUEUES = (
    Column("topic", "topic"),
    Column("broker", "brokerName"),
    number("queue", "queueId"),
    number("offset", "offset"),
    number("end", "maxOffset"),
    number("lag", "lag"),
    Column("waiting for", lambda row: duration(row["delayMs"])),
    Column("last consumed", lambda row: moment(row["lastConsumedAtMs"]), nothing="-"),
    Column("client", "clientId", nothing="-"),
)


@app.command()
@remote
def show(call: Call, group: Group, topic: OneTopic = None) -> None:
    """Show the offset and lag of a group in each queue."""
    answer = call.get(
        path_of("consumer-groups", group, "progress"),
        lambda services: services.consumer_groups.progress(group, topic),
        {"topic": topic},
    )

    def render(view: Json) -> None:
        topics = view["topics"]
        rows = [{"topic": each["topic"], **queue} for each in topics or () for queue in each["queues"]]
        lag = "lag unknown" if view["lag"] is None else f"lag {view['lag']}"
        show_table(None if topics is None else rows, _QUEUES, f"{view['group']}: {lag}, {view['presence']}")

    call.show(answer, render)


@app.command()
@remote
def reset(
    call: Call,
    group: Group,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    to: Annotated[
        str, typer.Option("--to", metavar="WHERE", help=f"earliest, latest, an offset, or a time: {FORMS}.")
    ],
    queues: Queues = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Move a group in a topic. What is consumed again or skipped is shown for each queue first."""
    body = {"topic": topic, **_where(to)}
    if queues:
        body["queues"] = [parse_queue(text) for text in queues]

    def local(services: "Services") -> "Change":
        from admin_api.groups.offset_changes import OffsetReset

        return services.offsets.reset(group, OffsetReset.model_validate(body))

    wanted = ChangeCall("POST", path_of("consumer-groups", group, "offsets", "reset"), local, body)
    change(call, wanted, yes=yes, dry_run=dry_run)


def _where(text: str) -> dict[str, Any]:
    """A number with fewer digits than a Unix time in ms is an offset. Raises: UserError."""
    if text in ("earliest", "latest"):
        return {"to": text}
    if text.isascii() and text.isdigit() and len(text) < 12:
        return {"to": "offset", "offset": int(text)}
    return {"to": "time", "timeMs": parse_moment_ms("--to", text)}


def parse_queue(text: str) -> dict[str, Any]:
    """`broker-a/3`. Raises: UserError."""
    broker, _, number_text = text.rpartition("/")
    if not broker or not number_text.isdecimal():
        raise UserError(f"a queue is BROKER/ID such as broker-a/3, not {text!r}.", WRONG_USAGE)
    return {"brokerName": broker, "queueId": int(number_text)}


@app.command()
@remote
def skip(call: Call, group: Group, topic: OneTopic = None, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Skip everything that has accumulated."""
    body = {} if topic is None else {"topic": topic}

    def local(services: "Services") -> "Change":
        from admin_api.groups.offset_changes import OffsetSkip

        return services.offsets.skip(group, OffsetSkip.model_validate(body))

    wanted = ChangeCall("POST", path_of("consumer-groups", group, "offsets", "skip"), local, body)
    change(call, wanted, yes=yes, dry_run=dry_run)


@app.command()
@remote
def clone(
    call: Call,
    group: Group,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The group that gets the offsets.")],
    topic: OneTopic = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Copy the offsets of this group to another group."""
    body = {"targetGroup": target} | ({} if topic is None else {"topic": topic})

    def local(services: "Services") -> "Change":
        from admin_api.groups.offset_changes import OffsetClone

        return services.offsets.clone(group, OffsetClone.model_validate(body))

    wanted = ChangeCall("POST", path_of("consumer-groups", group, "offsets", "clone"), local, body)
    change(call, wanted, yes=yes, dry_run=dry_run)
