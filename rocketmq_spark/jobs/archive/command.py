"""`ledgermq spark archive`."""

from __future__ import annotations

from typing import Annotated

import orjson
import typer

from rocketmq_spark.jobs.command_base import (
    DEFAULT_NAMESRV,
    AsJson,
    Conf,
    Master,
    Namesrv,
    StrictCommand,
    job,
    spark_app,
)
from rocketmq_spark.jobs.session import parse_conf

Verify = Annotated[
    str | None,
    typer.Option(metavar="PATH", help="Only prove an archive: no gap, no repeat, same rows."),
]
Pattern = Annotated[
    str | None, typer.Option(metavar="REGEX", help="All topics that this matches, new ones too.")
]
Start = Annotated[
    str,
    typer.Option("--from", metavar="WHEN", help="Where new queues begin: earliest, latest or a moment."),
]
Every = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help="With --continuous: how far apart batches are at least.", show_default="30s"
    ),
]
Source = Annotated[list[str] | None, typer.Option("--source", metavar="K=V", help="An option of the source.")]
Checkpoint = Annotated[
    str | None, typer.Option(metavar="URL", help="Spark's checkpoint.", show_default="in the archive")
]

ARCHIVE_EPILOG = """Examples:

ledgermq spark archive Orders --to archive

ledgermq spark archive --pattern 'Orders.*' --to archive --continuous --every 1m

ledgermq spark archive --verify archive
"""


@spark_app.command(cls=StrictCommand, epilog=ARCHIVE_EPILOG)
def archive(
    topics: Annotated[list[str] | None, typer.Argument(metavar="[TOPIC]...")] = None,
    to: Annotated[str | None, typer.Option(metavar="PATH", help="The archive: a folder or a URL.")] = None,
    verify: Verify = None,
    pattern: Pattern = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    start: Start = "earliest",
    continuous: Annotated[bool, typer.Option("--continuous", help="Go on until Ctrl-C.")] = False,
    every: Every = None,
    file_format: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="parquet or delta.")
    ] = "parquet",
    batch_bytes: Annotated[
        str, typer.Option(metavar="AMOUNT", help="Bytes of messages in one batch, about.")
    ] = "1GiB",
    batch_messages: Annotated[int | None, typer.Option(min=1, help="Messages in one batch at most.")] = None,
    files: Annotated[
        int | None, typer.Option(min=1, help="Tasks that write a batch; each one file an hour.")
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="Consumer group to which the archive's progress is committed.")
    ] = None,
    allow_data_loss: Annotated[
        bool, typer.Option("--allow-data-loss", help="Go on when messages are gone before they were read.")
    ] = False,
    source: Source = None,
    checkpoint: Checkpoint = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Keep topics as Parquet, partitioned by topic, date and hour (UTC): every message once, provably.

    Ends with what there is now unless --continuous. Killed at any moment and run again, it continues.
    """
    if verify is not None:
        _verify(verify, master, conf, as_json)
        return
    if to is None:
        raise typer.BadParameter("where to? Give --to PATH, or --verify PATH to prove an archive.")
    if every is not None and not continuous:
        raise typer.BadParameter("--every is the interval of batches and needs --continuous.")
    from rocketmq_spark.jobs.archive.job import ArchiveOptions, check, run_archive
    from rocketmq_spark.jobs.progress import progress_on
    from rocketmq_spark.jobs.words import bytes_words, parse_bytes, parse_seconds

    options = ArchiveOptions(
        namesrv=namesrv,
        path=to,
        topics=tuple(topics or ()),
        pattern=pattern,
        every_s=parse_seconds("--every", every or "30s") if continuous else None,
        format=file_format,
        batch_bytes=parse_bytes("--batch-bytes", batch_bytes),
        batch_messages=batch_messages,
        files_a_batch=files,
        allow_data_loss=allow_data_loss,
        checkpoint=checkpoint,
        source_options=_starting(start) | ({"groupId": group} if group else {}) | parse_conf(source or []),
    )
    check(options)
    with job("archive", master, conf) as spark:
        done = run_archive(spark, options, progress_on(name="messages archived"))
    if as_json:
        print(orjson.dumps(done).decode())
    else:
        print(
            f"{done.messages:,} messages ({bytes_words(done.body_bytes)}) archived to {to} "
            f"in {done.batches:,} batches, {done.files:,} files."
        )


def _starting(text: str) -> dict[str, str]:
    if text in ("earliest", "latest"):
        return {"startingOffsets": text}
    from rocketmq_spark.jobs.words import parse_moment_ms

    moment = parse_moment_ms("--from", text)
    return {"startingTimestamp": str(moment), "startingOffsetsByTimestampStrategy": "latest"}


def _verify(path: str, master: str | None, conf: list[str] | None, as_json: bool) -> None:
    from rocketmq_spark.jobs.archive.verify import run_verify
    from rocketmq_spark.jobs.progress import progress_on
    from rocketmq_spark.jobs.words import bytes_words

    with job("archive --verify", master, conf) as spark:
        found = run_verify(spark, path, progress_on(name="files verified"))
    if as_json:
        print(orjson.dumps(found).decode())
    else:
        for problem in found.problems:
            print(problem)
        more = found.problem_count - len(found.problems)
        print(f"and {more:,} more." if more else "", end="\n" if more else "")
        verdict = "whole" if found.is_whole else f"NOT whole, {found.problem_count:,} problems"
        print(
            f"{path} is {verdict}: {found.messages:,} messages ({bytes_words(found.body_bytes)}) of "
            f"{found.queues:,} queues in {found.batches:,} batches, {found.files:,} files."
        )
    if not found.is_whole:
        raise typer.Exit(1)
