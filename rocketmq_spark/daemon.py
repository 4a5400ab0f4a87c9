"""Spark's Python daemon with what our tasks need already imported: for `spark.python.daemon.module`.

Spark forks a Python process for each task that runs at a time, keeps it for a minute, and collects garbage in
it after each task. Forked from this daemon it finds Arrow and our reader there, and the collector passes over
all that was there before the fork: with some 90,000 objects it takes longer than a small task otherwise.

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
"""A process that forks should have no thread besides; one of Arrow's allocators starts one. Nothing else
does: Spark sets OMP_NUM_THREADS to what a task may use.
"""


def import_modules() -> None:
    """Import all modules, and have the garbage collector leave alone what is there then."""
    os.environ.setdefault(_ARROW_SETTING, _ONE_THREAD)
    for name in MODULES:
        importlib.import_module(name)
    os.register_at_fork(after_in_child=_reseed)
    gc.collect()
    gc.freeze()


def _reseed() -> None:
    """Python's own random numbers are other ones after a fork, numpy's are not: two workers would draw the
    same. Some versions of numpy import them with any part of numpy.
    """
    chance = sys.modules.get("numpy.random")
    if chance is not None:
        chance.seed()


def main() -> None:
    """Import, then be Spark's daemon until Spark ends."""
    import_modules()
    daemon.manager()


if __name__ == "__main__":
    main()
