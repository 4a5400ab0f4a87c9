"""`ledgermq message`."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ledgermq.app import Subcommands
from ledgermq.calls import Call, path_of, remote
from ledgermq.change_commands import ChangeCall, change
from ledgermq.commands.topics import pairs
from ledgermq.errors import WRONG_USAGE, UserError
from ledgermq.options import FORMS, DryRun, Yes, parse_moment_ms
from ledgermq.output import Column, Json, moment, number, printable, remark, show_fields, show_table, size

if TYPE_CHECKING:
    from pydantic import BaseModel

    from admin_api.changes import Change
    from admin_api.services import Services

app = typer.Typer(
    name="message",
    help="Messages: find, show, trace, send, send again.",
    cls=Subcommands,
    no_args_is_help=True,
    add_completion=False,
)
MessageId = Annotated[
    str, typer.Argument(metavar="ID", help="Offset message id; with --topic also the id its client gave it.")
]
MaybeTopic = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Needed for a client's id.")]
From = Annotated[str | None, typer.Option("--from", metavar="TIME", help=f"Stored then or later: {FORMS}.")]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Stored then or before.")]
Limit = Annotated[int, typer.Option(min=1, max=200, help="Messages of one answer.")]
Cursor = Annotated[
    str | None, typer.Option(metavar="CURSOR", help="Continue after the last answer (it shows this).")
]


class BodyFormat(StrEnum):
    """As `bodyFormat` of `/api/v1/messages/{id}`."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"
    HEX = "hex"
    BASE64 = "base64"


ROWS = (
    Column("id", "id"),
    Column("stored", lambda row: moment(row["storedAtMs"])),
    Column("queue", lambda row: f"{row['brokerName']}/{row['queueId']}"),
    number("offset", "queueOffset"),
    Column("tags", "tags", nothing="-"),
    Column("keys", "keys"),
    number("bytes", "storedBytes"),
    Column("body", lambda row: (row["preview"] or "").replace("\n", " ")[:60]),
)
_SPANS = (
    Column("what", "kind"),
    Column("when", lambda row: moment(row["atMs"])),
    number("took ms", "costMs"),
    Column("worked", "isSuccess"),
    Column("group", "group"),
    Column("client", "clientHost"),
    number("retry", "retryTimes"),
)
_TRACKS = (Column("group", "group"), Column("state", "state"), number("offset", "offset"))


def window_query(
    start: str | None, until: str | None, limit: int, cursor: str | None = None
) -> dict[str, object]:
    """The parameters of a search by time. Raises: UserError."""
    return {
        "from": None if start is None else parse_moment_ms("--from", start),
        "to": None if until is None else parse_moment_ms("--until", until),
        "limit": limit,
        "cursor": cursor,
    }


def show_window(answer: Json) -> None:
    show_table(answer["items"], ROWS)
    if answer.get("nextCursor"):
        remark(f"more: --cursor {answer['nextCursor']}")


@app.command()
@remote
def find(
    call: Call,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    key: Annotated[
        str | None, typer.Option(help="A key of the message, or the id its client gave it.")
    ] = None,
    start: From = None,
    until: Until = None,
    tag: Annotated[str | None, typer.Option(help="Only with this tag.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> None:
    """Find messages of a topic by key, or by when they were stored; the newest first."""
    query = {"topic": topic, "key": key, "tag": tag, **window_query(start, until, limit, cursor)}
    call.show(call.get("/messages", lambda services: _find(services, query), query), show_window)


async def _find(services: "Services", query: dict[str, Any]) -> "BaseModel":
    from admin_api.messages.window import FOREVER_MS, Search

    messages, topic, limit = services.messages, query["topic"], query["limit"]
    since_ms = query["from"] or 0
    until_ms = FOREVER_MS if query["to"] is None else query["to"]
    if query["key"] is not None:
        return await messages.by_key(topic, query["key"], since_ms, until_ms, min(limit, 64))
    if query["cursor"] is not None:
        return await messages.next_window(topic, query["cursor"], limit)
    return await messages.window(Search(topic, since_ms, until_ms, query["tag"]), limit)


@app.command()
@remote
def show(
    call: Call,
    message_id: MessageId,
    topic: MaybeTopic = None,
    body: Annotated[BodyFormat, typer.Option(help="How to show the body.")] = BodyFormat.AUTO,
) -> None:
    """Show one message, and which groups have consumed it."""

    async def local(services: "Services") -> "BaseModel":
        from admin_api.messages.views import BODY_SHOWN_BYTES
        from admin_api.messages.views import BodyFormat as Format

        return await services.messages.view(message_id, topic, Format(body.value), BODY_SHOWN_BYTES)

    query = {"topic": topic, "bodyFormat": body.value}
    answer = call.get(path_of("messages", message_id), local, query)
    call.show({**answer, **_track(call, message_id, topic)}, _show_message)


def _track(call: Call, message_id: str, topic: str | None) -> Json:
    """The groups that consumed the message; `track` is None if they are unknown."""
    tracks = call.get_beside(
        "track",
        path_of("messages", message_id, "track"),
        lambda services: services.messages.track(message_id, topic),
        {"topic": topic},
    )
    return {
        "track": tracks.get("items"),
        "problems": tracks["problems"],
        "isPartial": tracks["isPartial"],
    }


def _show_message(answer: Json) -> None:
    fields = {
        "client's id": answer["uniqueKey"],
        "topic": answer["topic"],
        "queue": f"{answer['brokerName']}/{answer['queueId']}, offset {answer['queueOffset']}",
        "tags": answer["tags"] or "-",
        "keys": answer["keys"] or "-",
        "born": f"{moment(answer['bornAtMs'])} at {answer['bornHost']}",
        "stored": f"{moment(answer['storedAtMs'])} at {answer['storeHost']}",
        "tried again": answer["reconsumeTimes"],
        "body": f"{size(answer['body']['bodyBytes']) or 'unknown size'}, "
        f"checksum {'right' if answer['isCrcRight'] else 'WRONG'}",
    }
    show_fields(fields, answer["id"])
    show_fields(answer["properties"], "\nproperties")
    body = answer["body"]
    print(f"\nbody ({body['format']}{', the beginning' if body['isBodyCut'] else ''}):")
    print(printable(body["problem"] if body["content"] is None else body["content"]))
    show_table(answer["track"], _TRACKS, "\nconsumed by")


@app.command()
@remote
def trace(call: Call, message_id: MessageId, topic: MaybeTopic = None) -> None:
    """Show what tracing clients report of a message: its send, and each consumption."""
    answer = call.get(
        path_of("messages", message_id, "trace"),
        lambda services: services.messages.trace(message_id, topic),
        {"topic": topic},
    )
    title = f"{len(answer['spans'])} spans in {answer['traceTopic']}"
    call.show(answer, lambda view: show_table(view["spans"], _SPANS, title))


@app.command()
@remote
def resend(
    call: Call,
    message_id: MessageId,
    topic: MaybeTopic = None,
    group: Annotated[str | None, typer.Option(help="To one consumer of this group, now.")] = None,
    client: Annotated[str | None, typer.Option(help="Which member of the group; any when left out.")] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Send a message again: to all groups of its topic as a new one, or to one consumer of --group."""
    body: dict[str, object] = {"target": "topic" if group is None else "consumer"}
    body |= {"consumerGroup": group, "clientId": client}

    async def local(services: "Services") -> "Change":
        from admin_api.messages.sending import ResendOrder, resend_change

        order = ResendOrder.model_validate(body)
        return await resend_change(services.messages, message_id, topic, order)

    path = path_of("messages", message_id, "resend")
    change(call, ChangeCall("POST", path, local, body, {"topic": topic}), yes=yes, dry_run=dry_run)


@app.command()
@remote
def send(
    call: Call,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    text: Annotated[
        str | None, typer.Argument(metavar="[TEXT]", help="The body; stdin when left out.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", exists=True, dir_okay=False, help="Take the body from it.")
    ] = None,
    tag: Annotated[str | None, typer.Option(help="Its tag.")] = None,
    keys: Annotated[list[str] | None, typer.Option("--key", help="A key; may be repeated.")] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--property", metavar="NAME=VALUE", help="May be repeated.")
    ] = None,
    delay_level: Annotated[
        int | None, typer.Option(min=1, help="Deliver it later: RocketMQ's level.")
    ] = None,
    queue: Annotated[str | None, typer.Option(metavar="BROKER/ID", help="To this queue.")] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Send one test message to a topic that exists. Many: `ledgermq produce`."""
    from base64 import b64encode

    given: dict[str, object] = {
        "base64": b64encode(_body(text, file)).decode(),
        "tags": tag,
        "keys": keys or None,
        "properties": pairs("--property", properties) or None,
        "delayLevel": delay_level,
    }
    if queue is not None:
        from ledgermq.commands.offsets import parse_queue

        given |= parse_queue(queue)
    body = {name: value for name, value in given.items() if value is not None}

    def local(services: "Services") -> "Change":
        from admin_api.messages.sending import NewMessage, SendMessage

        return SendMessage(services.messages, topic, NewMessage.model_validate(body))

    change(
        call, ChangeCall("POST", path_of("topics", topic, "messages"), local, body), yes=yes, dry_run=dry_run
    )


def _body(text: str | None, file: Path | None) -> bytes:
    """Raises: UserError."""
    if text is not None and file is not None:
        raise UserError("the body is TEXT or --file, not both.", WRONG_USAGE)
    if file is not None:
        return file.read_bytes()
    if text is not None:
        return text.encode()
    if sys.stdin.isatty():
        raise UserError("nothing to send: give TEXT, --file, or a body on stdin.", WRONG_USAGE)
    return sys.stdin.buffer.read()
