"""Spark's Python daemon with what our tasks need already imported: for `spark.python.daemon.module`.

Spark forks a Python process for each task that runs at a time, keeps it for a minute, and collects garbage in
it after each task. A process forked from this daemon has Arrow and our reader loaded, and its collector skips
all objects from before the fork: to visit some 90,000 objects takes longer than a small task.

Processes that plan a query are not forked from here: Spark has no setting for those.
"""

import gc
import importlib
import os
import sys
from typing import Final

from pyspark import daemon

MODULES: Final = (
    "pyspark.worker",
    "pyspark.sql.worker.plan_data_source_read",
    "rocketmq_spark.source.batch_reader",
    "rocketmq_spark.source.stream_reader",
    "rocketmq_spark.log.reader",
    "rocketmq_spark.sink.delivery",
)
"""What tasks of our formats, and of any Arrow function, import."""
_ARROW_SETTING: Final = "JE_ARROW_MALLOC_CONF"
_ONE_THREAD: Final = "background_thread:false"
"""A process that forks should have only one thread. One of Arrow's allocators would start another; no other
library does, because Spark sets OMP_NUM_THREADS to the cores of a task.
"""


def import_modules() -> None:
    """Import all modules, then exclude all their objects from garbage collection."""
    os.environ.setdefault(_ARROW_SETTING, _ONE_THREAD)
    for name in MODULES:
        importlib.import_module(name)
    os.register_at_fork(after_in_child=_reseed)
    gc.collect()
    gc.freeze()


def _reseed() -> None:
    """Seed numpy's random numbers in each worker. Python seeds its own after a fork, numpy does not: two
    workers would draw the same numbers. Some versions of numpy import `numpy.random` with any part of numpy.
    """
    chance = sys.modules.get("numpy.random")
    if chance is not None:
        chance.seed()


def main() -> None:
    """Import the modules, then run Spark's daemon until Spark ends."""
    import_modules()
    daemon.manager()


if __name__ == "__main__":
    main()
