"""What the commands of `ledgermq spark` share: their app, common options, session and error messages. Each of
them names every option that it does not know, with the nearest known ones.
"""

from __future__ import annotations

import difflib
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand

from rocketmq_spark.errors import RocketmqSparkError
from rocketmq_spark.jobs.errors import JobError, sentence_of
from rocketmq_spark.jobs.session import PACKAGES, SessionOptions, open_session, parse_conf, require_packages

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


def print_error(error: RocketmqSparkError) -> int:
    """Print an error on stderr; return the exit code."""
    if os.environ.get(TRACE) == "1":
        traceback.print_exception(error)
    print(f"error: {error}", file=sys.stderr)
    return 1


_NEAREST_MAX = 2


class StrictCommand(TyperCommand):
    """Where the parser stops at the first unknown option, this one names all of them at once. What the jobs
    need is checked before their modules are imported.

    The context is typer's or click's: which of them, depends on the version of typer.
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
    """The long options among the arguments that are not known, each once; what follows `--` is none."""
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
