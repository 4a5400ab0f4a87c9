"""`ledgermq topic`."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ledgermq.app import Subcommands
from ledgermq.calls import Call, path_of, remote
from ledgermq.change_commands import ChangeCall, change
from ledgermq.errors import WRONG_USAGE, UserError
from ledgermq.options import PAGE_SIZE, DryRun, Page, PageSize, Yes
from ledgermq.output import UNKNOWN, Column, Json, cell, duration, moment, number, show_pages, show_table

if TYPE_CHECKING:
    from pydantic import BaseModel

    from admin_api.changes import Change
    from admin_api.services import Services

app = typer.Typer(
    name="topic",
    help="Topics: queues, permissions, routes, traffic.",
    cls=Subcommands,
    no_args_is_help=True,
    add_completion=False,
)
Topic = Annotated[str, typer.Argument(metavar="TOPIC")]
Brokers = Annotated[
    list[str] | None, typer.Option("--broker", metavar="NAME", help="Only on this broker; may be repeated.")
]
Queues = Annotated[int | None, typer.Option(min=1, max=4_096, help="Read and write queues on each broker.")]
ReadQueues = Annotated[int | None, typer.Option(min=1, max=4_096, help="Queues to read from.")]
WriteQueues = Annotated[int | None, typer.Option(min=1, max=4_096, help="Queues to send to.")]
Ordered = Annotated[bool | None, typer.Option("--ordered/--unordered", help="Whether its order is strict.")]
Attributes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="An attribute, such as message.type=FIFO; repeatable."),
]


class Kind(StrEnum):
    """As `kind` of `/api/v1/topics`."""

    NORMAL = "normal"
    RETRY = "retry"
    DLQ = "dlq"
    SYSTEM = "system"


class Perm(StrEnum):
    """What clients may do."""

    READ_WRITE = "rw"
    READ = "r"
    WRITE = "w"
    NONE = "none"


def _perm(row: Json) -> str:
    return ("r" if row["canRead"] else "") + ("w" if row["canWrite"] else "") or "none"


_ROWS = (
    Column("topic", "name"),
    Column("kind", "kind"),
    number("read queues", "readQueues"),
    number("write queues", "writeQueues"),
    Column("may", _perm),
    Column("brokers", "brokers"),
)
_CONFIGS = (
    Column("broker", "brokerName"),
    number("read queues", "readQueues"),
    number("write queues", "writeQueues"),
    Column("may", _perm),
    Column("ordered", "isOrdered"),
    Column("type", "messageType", nothing="-"),
    Column("retention", lambda row: duration(row["retentionMs"]), nothing="the log's"),
)
_QUEUES = (
    Column("broker", "brokerName"),
    number("queue", "queueId"),
    number("first", "minOffset"),
    number("next", "maxOffset"),
    number("messages", "messageCount"),
    Column("last message", lambda row: moment(row["lastMessageAtMs"]), nothing="-"),
)
_ROUTES = (
    Column("broker", "brokerName"),
    Column("cluster", "cluster"),
    number("read queues", "readQueues"),
    number("write queues", "writeQueues"),
    Column(
        "nodes (id 0 accepts writes)", lambda row: [f"{key}: {at}" for key, at in row["addresses"].items()]
    ),
)


@app.command(name="list")
@remote
def list_topics(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="[PART]", help="A part of the name, in any case.")] = "",
    kind: Annotated[list[Kind] | None, typer.Option(help="May be repeated.", show_default="all")] = None,
    page: Page = 1,
    page_size: PageSize = PAGE_SIZE,
) -> None:
    """List topics over all brokers."""

    async def local(services: "Services") -> "BaseModel":
        from admin_api.errors import PageWanted
        from admin_api.topics.service import TopicKind, TopicQuery

        kinds = frozenset(TopicKind(each.value) for each in kind or ())
        return await services.topics.find(TopicQuery(name, kinds), PageWanted(page, page_size))

    def render(answer: Json) -> None:
        show_table(answer["items"], _ROWS)
        show_pages(answer)

    query: dict[str, object] = {"name": name or None, "kind": [k.value for k in kind or ()] or None}
    query |= {"page": page, "pageSize": page_size}
    call.show(call.get("/topics", local, query), render)


@app.command()
@remote
def show(call: Call, topic: Topic) -> None:
    """Show how each broker keeps a topic, its queues, and who consumes it."""
    view = call.get(path_of("topics", topic), lambda services: services.topics.one(topic))
    path = path_of("topics", topic, "queues")
    found = call.get_beside("queues", path, lambda services: services.topics.queues(topic))
    queues = {"messageCount": None, "queues": None, **found}

    def render(answer: Json) -> None:
        count = UNKNOWN if answer["messageCount"] is None else answer["messageCount"]
        show_table(answer["configs"], _CONFIGS, f"{answer['name']} ({answer['kind']})")
        show_table(answer["queues"], _QUEUES, f"{count} messages")
        groups = answer["consumerGroups"]
        named = "none" if groups == [] else cell(groups).text
        print(f"Consumer groups: {named}")

    both = {**queues, **view, "isPartial": view["isPartial"] or queues["isPartial"]}
    call.show({**both, "problems": view["problems"] + queues["problems"]}, render)


@app.command()
@remote
def route(call: Call, topic: Topic) -> None:
    """Show a topic's route as clients get it from the name server."""
    answer = call.get(path_of("topics", topic, "route"), lambda services: services.topics.route(topic))
    call.show(answer, lambda view: show_table(view["brokers"], _ROUTES, f"{topic} at {view['namesrv']}"))


@app.command()
@remote
def stats(call: Call, topic: Topic) -> None:
    """Show a topic's traffic in the last minute, hour and day."""
    answer = call.get(path_of("topics", topic, "stats"), lambda services: services.topics.stats(topic))
    call.show(answer, _show_stats)


def _show_stats(answer: Json) -> None:
    rows = [{"who": f"put at {each['brokerName']}", **_counts(each, "put")} for each in answer["brokers"]]
    rows += [{"who": f"got by {each['group']}", **_counts(each, "got")} for each in answer["groups"] or ()]
    names = ("perSecond", "lastMinute", "lastHour", "lastDay", "bytesLastDay")
    heads = ("messages/s", "last minute", "last hour", "last day", "bytes last day")
    columns = [number(head, name) for head, name in zip(heads, names, strict=True)]
    show_table(rows, (Column("", "who"), *columns), answer["topic"])


def _counts(row: Json, way: str) -> Json:
    size = row[f"{way}Bytes"]
    return {**(row[f"{way}Messages"] or {}), "bytesLastDay": size["lastDay"] if size else None}


@app.command()
@remote
def create(
    call: Call,
    topic: Topic,
    queues: Queues = None,
    read_queues: ReadQueues = None,
    write_queues: WriteQueues = None,
    perm: Annotated[Perm | None, typer.Option(show_default="rw")] = None,
    ordered: Ordered = None,
    attributes: Attributes = None,
    brokers: Brokers = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Make a topic on all brokers, or those named: 8 queues by default."""
    spec = _spec(queues, read_queues, write_queues, perm, ordered, attributes, brokers)
    body = {"name": topic, **spec}

    def local(services: "Services") -> "Change":
        from admin_api.topics.changes import NewTopic

        return services.topic_changes.create(topic, NewTopic.model_validate(body))

    change(call, ChangeCall("POST", "/topics", local, body), yes=yes, dry_run=dry_run)


@app.command()
@remote
def edit(
    call: Call,
    topic: Topic,
    queues: Queues = None,
    read_queues: ReadQueues = None,
    write_queues: WriteQueues = None,
    perm: Annotated[Perm | None, typer.Option(help="What clients may do.")] = None,
    ordered: Ordered = None,
    attributes: Attributes = None,
    brokers: Brokers = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Change a topic. Changes that take something away from clients must be confirmed."""
    body = _spec(queues, read_queues, write_queues, perm, ordered, attributes, brokers)
    if not body:
        raise UserError("what is to change? See `ledgermq topic edit --help`.", WRONG_USAGE)

    def local(services: "Services") -> "Change":
        from admin_api.topics.changes import TopicSpec

        return services.topic_changes.edit(topic, TopicSpec.model_validate(body))

    change(call, ChangeCall("PATCH", path_of("topics", topic), local, body), yes=yes, dry_run=dry_run)


def _spec(
    queues: int | None,
    read_queues: int | None,
    write_queues: int | None,
    perm: Perm | None,
    ordered: bool | None,
    attributes: list[str] | None,
    brokers: list[str] | None,
) -> dict[str, Any]:
    """The body of the request, with the options that were given. Raises: UserError."""
    body: dict[str, Any] = {
        "readQueues": read_queues or queues,
        "writeQueues": write_queues or queues,
        "canRead": None if perm is None else "r" in perm.value and perm is not Perm.NONE,
        "canWrite": None if perm is None else "w" in perm.value,
        "isOrdered": ordered,
        "attributes": pairs("--set", attributes) or None,
        "brokers": brokers or None,
    }
    return {name: value for name, value in body.items() if value is not None}


def pairs(option: str, texts: list[str] | None) -> dict[str, str]:
    """Parse texts of the form `KEY=VALUE`. Raises: UserError."""
    found = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UserError(f"{option} must be KEY=VALUE, not {text!r}.", WRONG_USAGE)
        found[key] = value
    return found


@app.command()
@remote
def delete(
    call: Call, topic: Topic, brokers: Brokers = None, yes: Yes = False, dry_run: DryRun = False
) -> None:
    """Delete a topic with all its messages, after showing what is lost."""
    wanted = ChangeCall(
        "DELETE",
        path_of("topics", topic),
        lambda services: services.topic_changes.delete(topic, brokers),
        query={"broker": brokers or None},
    )
    change(call, wanted, yes=yes, dry_run=dry_run)
