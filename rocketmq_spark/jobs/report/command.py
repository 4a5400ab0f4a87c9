"""`ledgermq spark report`."""

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

EPILOG = """Examples:

ledgermq spark report Orders --to report

ledgermq spark report --to report --group billing --lag-for 10m

ledgermq spark report --archive archive --from 2026-01-31 --to january
"""


@spark_app.command(cls=StrictCommand, epilog=EPILOG)
def report(
    to: Annotated[str, typer.Option(metavar="PATH", help="The folder to write the report to.")],
    topics: Annotated[list[str] | None, typer.Argument(metavar="[TOPIC]...")] = None,
    archive: Annotated[
        str | None, typer.Option(metavar="PATH", help="Read this archive.", show_default="the live topics")
    ] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    start: From = None,
    until: Until = None,
    groups: Annotated[
        list[str] | None, typer.Option("--group", help="Only these consumer groups; may be repeated.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="How many keys and tags.")] = 20,
    bucket: Annotated[
        str | None, typer.Option(metavar="TIME", help="One point of the timeline.", show_default="as it fits")
    ] = None,
    lag_for: Annotated[str, typer.Option(metavar="TIME", help="Sample the lag for so long.")] = "0s",
    lag_every: Annotated[str, typer.Option(metavar="TIME", help="How often it is sampled then.")] = "10s",
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Report on topics: throughput, sizes, latency, top keys and tags, consumer lag, dead letters.

    One HTML page that needs nothing from elsewhere, and a Parquet file for each table in it. Lag samples of
    earlier reports in the same folder are kept.
    """
    from rocketmq_spark.jobs.progress import progress_on
    from rocketmq_spark.jobs.report.job import ReportOptions, check, run_report
    from rocketmq_spark.jobs.words import parse_moment_ms, parse_seconds

    options = ReportOptions(
        namesrv=namesrv,
        path=to,
        topics=tuple(topics or ()),
        archive=archive,
        start_ms=None if start is None else parse_moment_ms("--from", start),
        end_ms=None if until is None else parse_moment_ms("--until", until),
        groups=tuple(groups or ()),
        top=top,
        bucket_s=None if bucket is None else round(parse_seconds("--bucket", bucket)),
        lag_for_s=parse_seconds("--lag-for", lag_for),
        lag_every_s=parse_seconds("--lag-every", lag_every),
    )
    check(options)
    with job("report", master, conf) as spark:
        done = run_report(spark, options, progress_on(name="steps of the report"))
    if as_json:
        print(orjson.dumps(done).decode())
    else:
        print(f"{done.messages:,} messages: {done.page}, and as Parquet beside it: {', '.join(done.tables)}.")
