"""`ledgermq spark audit`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rocketmq_spark.errors import OptionError
from rocketmq_spark.jobs.command_base import AsJson, Conf, Master, StrictCommand, job, spark_app

if TYPE_CHECKING:
    from rocketmq_spark.jobs.audit.report import AuditReport

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
        # Of typer's or of click's own class, depending on the version of typer.
        if any(kind.__name__ == "UsageError" for kind in type(error).__mro__):
            error.exit_code = 1  # type: ignore[attr-defined]
        raise


@spark_app.command(cls=AuditCommand, epilog=AUDIT_EPILOG)
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
        _verify(verify, key)
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
        _tell(found, report)
    raise typer.Exit(found.exit_code)


def _tell(found: AuditReport, report: str | None) -> None:
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


def _verify(path: Path, key: bytes | None) -> None:
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
