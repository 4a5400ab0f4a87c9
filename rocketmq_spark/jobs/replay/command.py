"""`ledgermq spark replay`."""

from __future__ import annotations

from typing import Annotated

import orjson
import typer

from rocketmq_spark.jobs.command_base import (
    DEFAULT_NAMESRV,
    AsJson,
    Conf,
    From,
    Master,
    Namesrv,
    StrictCommand,
    Until,
    job,
    spark_app,
)

State = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="Where the replay notes how far it is.", show_default="./TOPIC.replay.json"
    ),
]
Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", metavar="TOPIC", help="Read this topic (of an archive: all); repeatable."),
]

RequestTimeout = Annotated[
    str | None, typer.Option(metavar="TIME", help="For one request.", show_default="5s")
]
RetryTimeout = Annotated[
    str | None, typer.Option(metavar="TIME", help="For its repetitions.", show_default="1m")
]

EPILOG = """Examples:

ledgermq spark replay --archive archive --to OrdersAgain --rate 1000

ledgermq spark replay --topic Orders --from 2026-01-31T05:00 --until 2026-01-31T06:00 --to OrdersAgain

ledgermq spark replay --topic %DLQ%billing --to Orders --rate 50
"""


@spark_app.command(cls=StrictCommand, epilog=EPILOG)
def replay(
    to: Annotated[str, typer.Option(metavar="TOPIC", help="The topic that the messages go to.")],
    archive: Annotated[
        str | None, typer.Option(metavar="PATH", help="Read this archive.", show_default="the live topics")
    ] = None,
    topics: Topics = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    start: From = None,
    until: Until = None,
    rate: Annotated[
        float | None, typer.Option(min=0.001, help="Messages a second at most, of all tasks together.")
    ] = None,
    rate_bytes: Annotated[
        str | None, typer.Option(metavar="AMOUNT", help="Bytes of bodies a second at most.")
    ] = None,
    keep_queues: Annotated[
        bool, typer.Option("--keep-queues", help="To the queue of the same number.")
    ] = False,
    delivery: Annotated[
        str, typer.Option(metavar="HOW", help="exactly-once, at-least-once, or auto: the best there is.")
    ] = "auto",
    create_queues: Annotated[
        int, typer.Option(min=0, help="Make a missing topic with so many queues.", show_default="do not")
    ] = 0,
    batch_messages: Annotated[
        int | None,
        typer.Option(min=1, help="Messages in one batch.", show_default="1 m; 50,000 without a rate"),
    ] = None,
    state: State = None,
    request_timeout: RequestTimeout = None,
    retry_timeout: RetryTimeout = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Send messages of an archive, or of a time window of topics, again, at a bounded rate.

    Keys, tags, properties and bodies stay. Killed at any moment and run again, it continues: to LedgerMQ each
    message is sent once, to other brokers those of the batch under way perhaps twice.
    """
    from rocketmq_spark.jobs.progress import progress_on
    from rocketmq_spark.jobs.replay.job import ReplayOptions, check, run_replay
    from rocketmq_spark.jobs.replay.rate_limit import Rate
    from rocketmq_spark.jobs.words import parse_bytes, parse_moment_ms

    options = ReplayOptions(
        namesrv=namesrv,
        to=to,
        state=state or f"{to}.replay.json",
        topics=tuple(topics or ()),
        archive=archive,
        start_ms=None if start is None else parse_moment_ms("--from", start),
        end_ms=None if until is None else parse_moment_ms("--until", until),
        rate=Rate(rate, None if rate_bytes is None else parse_bytes("--rate-bytes", rate_bytes)),
        keep_queues=keep_queues,
        delivery=delivery,
        create_queues=create_queues,
        batch_messages=batch_messages,
        connection_options=_given(requestTimeout=request_timeout, retryTimeout=retry_timeout),
    )
    check(options)
    with job("replay", master, conf) as spark:
        done = run_replay(spark, options, progress_on(name="messages replayed"))
    if as_json:
        print(orjson.dumps(done).decode())
    else:
        print(
            f"{done.messages:,} messages sent to {to} in {done.batches:,} batches; "
            f"{done.total:,} by all runs of this replay ({options.state})."
        )


def _given(**options: str | None) -> dict[str, str]:
    return {name: value for name, value in options.items() if value is not None}
