"""What the pipeline's bench works on: a cluster with a filled topic, its replicas' files, Spark sessions."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.growth_runs import status
from bench.pipeline_data import Messages, Tally, WrongResultError
from bench.results_file import ROOT
from bench.sides import NODE_IDS, LedgerMQ
from rocketmq_spark.client.cluster import Cluster
from rocketmq_spark.client.queue_offsets import bounds
from rocketmq_spark.log.discovery import find_logs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUEUES = 8
DATA_FILE_BYTES = 64 << 20
SETTINGS = (f"mappedFileSizeCommitLog={DATA_FILE_BYTES}",)
"""Spark's binary scan takes a file as one row: with data files of 1 GiB it would have one task at a time."""
SETTLE_LIMIT_S = 60.0
BLOCK_BYTES = 1 << 20
_POLL_S = 0.2
_CONF = {
    "spark.driver.memory": "3g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.metricsEnabled": "false",
}
TALLY = "sum(CASE WHEN substring(body, 16, 1) = X'30' THEN crc32(body) END)"


@dataclass(slots=True)
class Site:
    """`messages` are what every whole reading of the topic must find; `log_bytes` is one replica's log."""

    side: LedgerMQ
    topic: str
    messages: Messages
    folder: Path
    spark: SparkSession
    log_bytes: int = 0
    numbers: Iterator[int] = field(default_factory=lambda: iter(range(1, 1 << 30)))

    @property
    def cluster(self) -> dict[str, str]:
        return {"namesrv": self.side.namesrv}

    @property
    def stores(self) -> list[str]:
        return [str(self.side.data / node / "store") for node in NODE_IDS]

    def new_name(self, what: str) -> str:
        """A name that this run has not given yet."""
        return f"{what}{next(self.numbers)}"

    def files(self, store: str) -> list[Path]:
        """The data files of a store's log, in their order."""
        return sorted(Path(find_logs(store, "dledger", {})[0].data.folder).iterdir())


def tally_of(frame: DataFrame, size: int) -> Tally:
    """Read a frame to its end; bodies of another size, as other topics in the same log have, do not count."""
    from pyspark.sql import functions as sql

    row = (
        frame.where(sql.length("body") == size)
        .agg(sql.count(sql.lit(1)), sql.sum(sql.length("body")), sql.expr(TALLY))
        .collect()[0]
    )
    return Tally(row[0], row[1] or 0, row[2] or 0)


def open_spark(cores: int, folder: Path) -> SparkSession:
    """A session on so many cores, with our formats. One at a time: stop the one before."""
    from rocketmq_spark import register
    from rocketmq_spark.jobs.session import SessionOptions, open_session

    os.environ["PYTHONPATH"] = str(ROOT)  # of the workers: this checkout
    conf = _CONF | {"spark.sql.warehouse.dir": str(folder / "warehouse")}
    conf["spark.local.dir"] = str(folder / "local")
    spark = open_session(SessionOptions("bench", f"local[{cores}]", conf))
    found = spark.sparkContext.master
    if found != f"local[{cores}]":
        raise WrongResultError(f"Spark runs as {found}, not on {cores} cores")
    register(spark)
    return spark


def write_topic(site: Site, frame: DataFrame, topic: str, options: dict[str, Any]) -> float:
    """Seconds that the sink takes to write the frame to a new topic."""
    all_options = {**site.cluster, "topic": topic, "createTopicQueues": QUEUES, **options}
    began_s = time.monotonic()
    frame.write.format("rocketmq").mode("append").options(**all_options).save()
    return time.monotonic() - began_s


def stored(site: Site, topic: str) -> int:
    """Messages in a topic, by its queues' offsets. These grow soon after the acknowledgement, when the leader
    has dispatched the messages to the queues, so what is missing is waited for.
    """
    end_s = time.monotonic() + SETTLE_LIMIT_S
    while True:
        with Cluster(site.side.namesrv) as cluster:
            found = bounds(cluster, cluster.queues(topic))
        count = sum(one.max_offset - one.min_offset for one in found.values())
        if count >= site.messages.tally.messages or time.monotonic() > end_s:
            return count
        time.sleep(_POLL_S)


def fill(site: Site) -> None:
    """Send all messages to the topic, then wait until each replica's checkpoint counts them.

    Raises: WrongResultError when that does not come true.
    """
    frame = site.spark.read.parquet(str(site.messages.path))
    write_topic(site, frame, site.topic, {})
    if (found := stored(site, site.topic)) != site.messages.tally.messages:
        raise WrongResultError(f"{found} messages are in the topic that was filled")
    settle(site)


def settle(site: Site) -> None:
    """Wait until all replicas have everything committed and in their checkpoints."""
    end = status(site.side, site.side.leader())
    end_s = time.monotonic() + SETTLE_LIMIT_S
    for store in site.stores:
        while _committed(store) < end["endIndex"]:
            if time.monotonic() > end_s:
                raise WrongResultError(f"the replica {store} does not come to entry {end['endIndex']}")
            time.sleep(_POLL_S)
    site.log_bytes = int(end["endPosition"])


def _committed(store: str) -> int:
    checkpoint = find_logs(store, "dledger", {})[0].checkpoint
    return checkpoint.committed_index if checkpoint is not None else -1


def read_files(site: Site, *, with_log: bool) -> list[Path]:
    """What a part reads: the files of bodies, and the logs of all replicas."""
    logs = [path for store in site.stores for path in site.files(store)] if with_log else []
    return [*site.messages.path.iterdir(), *logs]


def read_once(site: Site, *, with_log: bool) -> int:
    """Have what a part reads in the page cache: the files of bodies, and the logs of all replicas.

    Returns how many bytes these are.
    """
    buffer, total = bytearray(BLOCK_BYTES), 0
    for path in read_files(site, with_log=with_log):
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                total += count
    return total


@contextmanager
def running(folder: Path) -> Iterator[LedgerMQ]:
    """Three nodes, durability persisted."""
    side = LedgerMQ(folder / "cluster", settings=SETTINGS)
    try:
        side.start()
        yield side
    finally:
        side.stop()
