"""`ledgermq spark archive|replay|audit|report`: the jobs as commands. PySpark is imported when one runs.

Each command names every option that it does not know, with the nearest known ones.
"""

from __future__ import annotations

import difflib
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import orjson
import typer
from typer.core import TyperCommand

from rocketmq_spark.errors import JobError, OptionError, RocketmqSparkError, sentence_of
from rocketmq_spark.jobs.session import PACKAGES, SessionOptions, open_session, parse_conf, require_packages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rocketmq_spark.jobs.audit.report import AuditReport


DEFAULT_NAMESRV: Final = "127.0.0.1:9876"
TRACE: Final = "LEDGERMQ_SPARK_TRACE"
"""An environment variable: if it is 1, errors are printed with Spark's whole traces."""

app = typer.Typer(
    name="spark",
    help="Archive, replay, audit and report on topics with PySpark.",
    epilog="Each job runs embedded (local[*]) unless --master or spark-submit says otherwise. "
    f"{TRACE}=1 shows the whole trace of an error.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Master = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="Spark master.", show_default="local[*], or spark-submit's"),
]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="K=V", help="A setting of Spark; may be repeated.")
]
Namesrv = Annotated[
    str,
    typer.Option(
        "--namesrv",
        envvar="LEDGERMQ_NAMESRV",
        metavar="HOST:PORT",
        help="The name server; several with `;`.",
    ),
]
From = Annotated[
    str | None, typer.Option("--from", metavar="MOMENT", help="Only what was stored then or later.")
]
Until = Annotated[str | None, typer.Option("--until", metavar="MOMENT", help="Only what was stored before.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@contextmanager
def job(name: str, master: str | None, conf: list[str] | None) -> Iterator[SparkSession]:
    """A session for one job. A failure inside Spark is raised as a JobError with a sentence."""
    spark = open_session(SessionOptions(f"ledgermq {name}", master, parse_conf(conf or [])))
    try:
        yield spark
    except RocketmqSparkError:
        raise
    except Exception as error:
        raise JobError(sentence_of(error)) from error
    finally:
        spark.stop()


def print_error(error: RocketmqSparkError) -> int:
    """Print an error on stderr; return the exit code."""
    if os.environ.get(TRACE) == "1":
        traceback.print_exception(error)
    print(f"error: {error}", file=sys.stderr)
    return 1


_NEAREST_MAX = 2


class StrictCommand(TyperCommand):
    """The parser stops at the first unknown option; this command names all of them. What the jobs
    need is checked before their modules are imported.

    The context is typer's or click's, depending on the version of typer.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        parameters: list[Any] = list(self.get_params(ctx))
        known = {name for one in parameters for name in (*one.opts, *one.secondary_opts)}
        unknown = unknown_options(args, known)
        if unknown:
            ctx.fail(" ".join(_sentence(name, known) for name in unknown))
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Raises: SetupError naming the packages that are missing."""
        require_packages(PACKAGES)
        return super().invoke(ctx)


def unknown_options(args: Sequence[str], known: Iterable[str]) -> list[str]:
    """The long options among the arguments that are not known, each once; not those after `--`."""
    names = set(known)
    options = args[: args.index("--")] if "--" in args else args
    given = [arg.partition("=")[0] for arg in options if arg.startswith("--")]
    return [name for name in dict.fromkeys(given) if name not in names]


def _sentence(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(
        name, [option for option in known if option.startswith("--")], _NEAREST_MAX
    )
    hint = f" (nearest: {', '.join(near)})" if near else ""
    return f"No such option: {name}{hint}."


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
SourceOption = Annotated[
    list[str] | None, typer.Option("--source", metavar="K=V", help="An option of the source.")
]
Checkpoint = Annotated[
    str | None, typer.Option(metavar="URL", help="Spark's checkpoint.", show_default="in the archive")
]

ARCHIVE_EPILOG = """Examples:

ledgermq spark archive Orders --to archive

ledgermq spark archive --pattern 'Orders.*' --to archive --continuous --every 1m

ledgermq spark archive --verify archive
"""


@app.command(cls=StrictCommand, epilog=ARCHIVE_EPILOG)
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
    source: SourceOption = None,
    checkpoint: Checkpoint = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Keep topics as Parquet, partitioned by topic, date and hour (UTC): every message once, provably.

    Ends with what there is now unless --continuous. Killed at any moment and run again, it continues.
    """
    if verify is not None:
        _verify_archive(verify, master, conf, as_json)
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
    sentence = (
        f"{done.messages:,} messages ({bytes_words(done.body_bytes)}) archived to {to} "
        f"in {done.batches:,} batches, {done.files:,} files."
    )
    _print_result(done, sentence, as_json)


def _print_result(done: object, sentence: str, as_json: bool) -> None:
    print(orjson.dumps(done).decode() if as_json else sentence)


def _starting(text: str) -> dict[str, str]:
    if text in ("earliest", "latest"):
        return {"startingOffsets": text}
    from rocketmq_spark.jobs.words import parse_moment_ms

    moment = parse_moment_ms("--from", text)
    return {"startingTimestamp": str(moment), "startingOffsetsByTimestampStrategy": "latest"}


def _verify_archive(path: str, master: str | None, conf: list[str] | None, as_json: bool) -> None:
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

REPLAY_EPILOG = """Examples:

ledgermq spark replay --archive archive --to OrdersAgain --rate 1000

ledgermq spark replay --topic Orders --from 2026-01-31T05:00 --until 2026-01-31T06:00 --to OrdersAgain

ledgermq spark replay --topic %DLQ%billing --to Orders --rate 50
"""


@app.command(cls=StrictCommand, epilog=REPLAY_EPILOG)
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
    sentence = (
        f"{done.messages:,} messages sent to {to} in {done.batches:,} batches; "
        f"{done.total:,} by all runs of this replay ({options.state})."
    )
    _print_result(done, sentence, as_json)


def _given(**options: str | None) -> dict[str, str]:
    return {name: value for name, value in options.items() if value is not None}


AUDIT_EPILOG = """Exit code: 0 identical, 2 divergence or corruption, 1 nothing could be proved.

Examples:

ledgermq spark audit data/n0/store data/n1/store data/n2/store --report audit

ledgermq spark audit 'data/n*/store' --queues --sign-key audit.key

ledgermq spark audit --verify audit.json --sign-key audit.key
"""
KEY_BYTES_MAX = 4096


class AuditCommand(StrictCommand):
    """Wrong usage is exit code 1: 2 means that the replicas differ."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with _usage_errors_as_1():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        with _usage_errors_as_1():
            return super().invoke(ctx)


@contextmanager
def _usage_errors_as_1() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # The class is typer's or click's, depending on the version of typer.
        if any(kind.__name__ == "UsageError" for kind in type(error).__mro__):
            error.exit_code = 1  # type: ignore[attr-defined]
        raise


@app.command(cls=AuditCommand, epilog=AUDIT_EPILOG)
def audit(
    stores: Annotated[
        list[str] | None,
        typer.Argument(metavar="[STORE]...", help="The replicas' stores: folders, URLs or patterns."),
    ] = None,
    names: Annotated[
        str | None, typer.Option(metavar="A,B,C", help="What to call the replicas.", show_default="by path")
    ] = None,
    report: Annotated[str | None, typer.Option(metavar="PATH", help="Write PATH.json and PATH.html.")] = None,
    queues: Annotated[
        bool, typer.Option("--queues", help="Hold the consume queues against the log, too.")
    ] = False,
    range_size: Annotated[str, typer.Option(metavar="AMOUNT", help="Of log per hash, about.")] = "16MiB",
    log_format: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="auto, dledger or commitlog.")
    ] = "auto",
    sign_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A secret to sign the report with.")
    ] = None,
    verify: Annotated[
        Path | None, typer.Option(metavar="REPORT", help="Only check a report's digest and signature.")
    ] = None,
    storage: Annotated[
        list[str] | None, typer.Option("--storage", metavar="K=V", help="An option of the file system.")
    ] = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Prove from their files that all replicas hold the same bytes up to the committed position.

    Checks every CRC, index, term and queue offset, and hashes each range. Stores may be live.
    """
    key = _key(sign_key)
    if verify is not None:
        _verify_report(verify, key)
        return
    if not stores:
        raise typer.BadParameter("which stores? Name those of all replicas, or --verify a report.")
    from rocketmq_spark.jobs.audit.job import AuditOptions, run_audit
    from rocketmq_spark.jobs.progress import progress_on
    from rocketmq_spark.jobs.session import parse_conf
    from rocketmq_spark.jobs.words import parse_bytes
    from rocketmq_spark.log.options import parse_format

    options = AuditOptions(
        stores=tuple(stores),
        names=tuple(name.strip() for name in names.split(",")) if names else (),
        range_bytes=parse_bytes("--range-size", range_size),
        check_queues=queues,
        format=parse_format("--format", log_format),
        sign_key=key,
        storage_options=parse_conf(storage or []),
    )
    with job("audit", master, conf) as spark:
        found = run_audit(spark, options, progress_on(name="audit"))
    if report is not None:
        Path(f"{report}.json").write_bytes(found.to_json())
        Path(f"{report}.html").write_text(found.to_html(), encoding="utf-8")
    if as_json:
        sys.stdout.write(found.to_json().decode())
    else:
        _print_report(found, report)
    raise typer.Exit(found.exit_code)


def _print_report(found: AuditReport, report: str | None) -> None:
    content = found.content
    end = content["commonEnd"]
    upto = f"position {end['position']:,}" if end["index"] is None else f"entry {end['index']:,}"
    size = f"{content['entries']:,} entries, {content['bytes']:,} bytes, {content['seconds']} s"
    if found.is_identical:
        print(f"identical: {len(content['replicas'])} replicas up to {upto} ({size})")
    else:
        print(f"NOT identical: {content['problemCount']:,} problems ({size})")
    first = found.first_divergence
    if first is not None:
        index = "" if first["index"] is None else f" entry {first['index']:,}"
        place = f"position {first['position']:,}, {first['field']}"
        print(f"first divergence: replica {first['replica']},{index} {place}: {first['detail']}")
    for problem in content["problems"][:20]:
        print(f"  {problem['kind']} {problem['replica']} position {problem['position']}: {problem['detail']}")
    for note in content["notes"][:20]:
        print(f"  note: {note}")
    if report is not None:
        print(f"report: {report}.json, {report}.html")


def _verify_report(path: Path, key: bytes | None) -> None:
    from rocketmq_spark.jobs.audit.report import check_seal

    try:
        data = path.read_bytes()
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror}") from None
    fault = check_seal(data, key)
    if fault is not None:
        print(f"{path}: {fault}")
        raise typer.Exit(2)
    print(f"{path}: as it was written{'' if key is None else ', and signed with this key'}")


def _key(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise OptionError(f"the key {path} cannot be read: {error.strerror}") from None
    if not 0 < len(key) <= KEY_BYTES_MAX:
        raise OptionError(f"the key {path} has {len(key)} bytes, must have 1 to {KEY_BYTES_MAX}")
    return key


REPORT_EPILOG = """Examples:

ledgermq spark report Orders --to report

ledgermq spark report --to report --group billing --lag-for 10m

ledgermq spark report --archive archive --from 2026-01-31 --to january
"""


@app.command(cls=StrictCommand, epilog=REPORT_EPILOG)
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
    sentence = f"{done.messages:,} messages: {done.page}, and as Parquet beside it: {', '.join(done.tables)}."
    _print_result(done, sentence, as_json)


INTERRUPTED: Final = 130


def main() -> None:
    """The entry point of `python -m rocketmq_spark.jobs` and of spark-submit."""
    try:
        app()
    except RocketmqSparkError as error:
        sys.exit(print_error(error))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
