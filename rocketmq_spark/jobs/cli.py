"""`ledgermq spark archive|replay|audit|report`: the jobs as commands. PySpark is imported when one runs."""

from __future__ import annotations

import sys
from typing import Final

from typer import Typer

from rocketmq_spark.errors import RocketmqSparkError
from rocketmq_spark.jobs.archive import command as cli_archive
from rocketmq_spark.jobs.audit import command as cli_audit
from rocketmq_spark.jobs.command_base import print_error, spark_app
from rocketmq_spark.jobs.replay import command as cli_replay
from rocketmq_spark.jobs.report import command as cli_report

INTERRUPTED: Final = 130

_COMMANDS: Final = (cli_archive.archive, cli_audit.audit, cli_replay.replay, cli_report.report)
"""Each module puts its command into the app when it is imported."""


def spark_commands() -> Typer:
    """The commands as an app of their own, to be included in a larger one."""
    return spark_app


def main() -> None:
    """The entry point of `python -m rocketmq_spark.jobs` and of spark-submit."""
    try:
        spark_app()
    except RocketmqSparkError as error:
        sys.exit(print_error(error))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
