"""What the commands of `ledgermq spark` share: their app, common options, session and error words."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from rocketmq_spark.errors import RocketmqSparkError
from rocketmq_spark.jobs.errors import JobError, sentence_of
from rocketmq_spark.jobs.session import SessionOptions, open_session, parse_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_NAMESRV: Final = "127.0.0.1:9876"
TRACE: Final = "LEDGERMQ_SPARK_TRACE"
"""A variable of the environment: set to 1, errors come with the whole of Spark's traces."""

spark_app = typer.Typer(
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
    """A session for one job. What fails inside Spark leaves as a JobError with a sentence."""
    spark = open_session(SessionOptions(f"ledgermq {name}", master, parse_conf(conf or [])))
    try:
        yield spark
    except RocketmqSparkError:
        raise
    except Exception as error:
        raise JobError(sentence_of(error)) from error
    finally:
        spark.stop()


def tell(error: RocketmqSparkError) -> int:
    """Say an error on stderr; return the exit code."""
    if os.environ.get(TRACE) == "1":
        traceback.print_exception(error)
    print(f"error: {error}", file=sys.stderr)
    return 1
