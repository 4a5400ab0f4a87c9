"""The data pipeline: Spark source, log scan, archive, audit and sink beside plain loops and Spark's scans.

usage: python -m bench.pipeline [--messages 1000000] [--rounds 3] [--folder DIR] [--save NAME]

One run starts three nodes, fills a topic, warms every part up with few messages, and measures all of them.
It takes about 9 minutes with `--rounds 1` and 4 more for each further round, 8 GB of disk for each round and
8 besides. The files that are read, 5 GB, are locked in memory where that is allowed. Figures are saved after
every part: one that fails, or takes over 5 minutes, is named, and the others go on. Needs the extra `spark`,
a JDK of 17 or newer, and `bench/get_rivals.sh java` for the Java consumer.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from bench import pipeline_parts
from bench.pipeline_data import Messages, write_messages
from bench.pipeline_machine import from_disk_bytes, kept_in_memory, only_cores
from bench.pipeline_parts import ONE_CORE, READING, TWO_CORES, WRITING, Part
from bench.pipeline_site import Site, fill, open_spark, read_files, read_once, running
from bench.pipeline_summary import TITLES, Measured, failed, summarize, targets
from bench.processes import end_on_signals
from bench.results_file import machine, save
from bench.rivals import rivals_folder
from rocketmq_spark.errors import sentence_of

PHASES: tuple[tuple[int, tuple[Part, ...]], ...] = (
    (2, READING),
    (1, ONE_CORE),
    (2, TWO_CORES),
    (2, WRITING),
)
"""Cores of the session, and what is measured in it. The sinks come last: they make the log longer. The JVM is
the same in all of them: what is compared on one and on two cores runs when it has compiled most of its code.
"""
TOPIC = "Pipeline"
WARM_TOPIC = "PipelineWarm"
WARM_MESSAGES = 50_000
FILL_S = 30.0
PAUSE_S = 1.0
PART_LIMIT_S = 300.0
WARM_UPS_MIN = 2
WORDS_MAX = 500
LOCKED = "are locked in the page cache"
READ_ONCE = "were read once before each part, so that most come from the page cache"
GUESSED_MESSAGES = 1_000_000
PART_NAMES = [part.name for _, parts in PHASES for part in parts]
VERSIONS = ("pyspark", "pyarrow", "numpy")


class Pipeline:
    """All parts in their order, each `rounds` times. What was measured is saved after each."""

    def __init__(self, arguments: argparse.Namespace, folder: Path, progress: Progress) -> None:
        self._arguments = arguments
        self._folder = folder
        self._progress = progress
        self._machine = machine()
        self._began_s = time.monotonic()
        self._log_bytes = 0
        self._is_locked = True
        self.measured: list[Measured] = []
        self._scale = arguments.messages / GUESSED_MESSAGES
        guesses = [part.guess_s for _, parts in self._phases() for part in parts]
        total_s = self._scale * (FILL_S + arguments.rounds * sum(guesses))
        self._bar = progress.add_task("", total=total_s)

    def _phases(self) -> Iterator[tuple[int, list[Part]]]:
        for cores, parts in PHASES:
            chosen = [part for part in parts if part.name in self._arguments.part]
            if chosen:
                yield cores, chosen

    def run(self) -> None:
        count, size = self._arguments.messages, self._arguments.size
        # A body shorter by one byte: readers of the log distinguish the two topics by it.
        warm = write_messages(self._folder / "warm", min(count, WARM_MESSAGES), size - 1, self._say)
        messages = write_messages(self._folder / "messages", count, size, self._say)
        self._say("three nodes start")
        with running(self._folder) as side:
            for cores, parts in self._phases():
                try:
                    with self._session(cores) as spark:
                        site = Site(side, TOPIC, messages, self._folder, spark, self._log_bytes)
                        self._phase(site, warm, cores, parts)
                except Exception as error:
                    if not self._log_bytes:
                        raise
                    self._print(f"Spark on {cores} cores failed: {words_of(error)}")
                    figures = {"failed": words_of(error)}
                    self.measured += [{"round": 0, "part": part.name, "figures": figures} for part in parts]
                    self._write()

    def _phase(self, site: Site, warm: Messages, cores: int, parts: Sequence[Part]) -> None:
        if not self._log_bytes:
            self._fill(site, warm)
        self._say("bringing the files into memory")
        files = read_files(site, with_log=any(part.reads_log for part in parts))
        with only_cores(cores), kept_in_memory(files) as is_locked:
            self._is_locked &= is_locked
            self._warm_up(site, warm, parts)
            self._rounds(site, parts)

    @contextmanager
    def _session(self, cores: int) -> Iterator[Any]:
        self._say(f"Spark starts on local[{cores}]")
        spark = open_spark(cores, self._folder)
        self._print(f"Spark runs on local[{cores}]")
        try:
            yield spark
        finally:
            spark.stop()

    def _fill(self, site: Site, warm: Messages) -> None:
        self._say("filling the topic")
        fill(replace(site, topic=WARM_TOPIC, messages=warm))
        fill(site)
        self._print(f"the topic is filled; a replica's log has {site.log_bytes:,} bytes")
        self._log_bytes = site.log_bytes
        self._progress.advance(self._bar, FILL_S * self._scale)

    def _warm_up(self, site: Site, warm: Messages, parts: Sequence[Part]) -> None:
        """Each part with few messages (the log's with all of it), for as long as the Java consumer is. What
        fails here fails again later.
        """
        for part in parts:
            if not part.needs_warm_up:
                continue
            self._say(f"warming up: {TITLES[part.name]}")
            end_s, runs = time.monotonic() + pipeline_parts.WARM_UP_S, 0
            figures: dict[str, Any] = {}
            while (time.monotonic() < end_s or runs < WARM_UPS_MIN) and "failed" not in figures:
                figures = measure(part, replace(site, topic=WARM_TOPIC, messages=warm))
                runs += 1
            words = figures.get("failed") or f"{figures['seconds']}, the last of {runs}"
            self._print(f"warm-up  {part.name:15} {words}")

    def _rounds(self, site: Site, parts: Sequence[Part]) -> None:
        for number in range(self._arguments.rounds):
            for part in parts:
                self._say(f"round {number + 1} of {self._arguments.rounds}: {TITLES[part.name]}")
                read_once(site, with_log=part.reads_log)
                time.sleep(PAUSE_S)
                figures = measure(part, site)
                self.measured.append({"round": number, "part": part.name, "figures": figures})
                words = ", ".join(f"{name} {value}" for name, value in figures.items())
                self._print(f"round {number + 1}  {part.name:15} {words}")
                self._progress.advance(self._bar, part.guess_s * self._scale)
                self._write()

    def _say(self, text: str) -> None:
        self._progress.update(self._bar, description=text)

    def _print(self, text: str) -> None:
        at_s = time.monotonic() - self._began_s
        self._progress.console.print(f"{at_s:6.1f} s  {text}", highlight=False, soft_wrap=True)

    def _write(self) -> None:
        load = {
            "messages": self._arguments.messages,
            "size": self._arguments.size,
            "rounds": self._arguments.rounds,
            "log_bytes": self._log_bytes,
            "durability": "persisted: on the disks (fdatasync) of a majority of the nodes",
            "command": command(),
            "files": LOCKED if self._is_locked else READ_ONCE,
            "spark": {name: version(name) for name in VERSIONS},
        }
        result = {
            "targets": targets(self.measured),
            "summary": summarize(self.measured),
            "measured": self.measured,
        }
        save(self._arguments.save, load, result, self._machine)


def measure(part: Part, site: Site) -> dict[str, Any]:
    """The part's figures, with what came from the disk meanwhile; or in `failed` why there are none."""
    before_bytes = from_disk_bytes()
    limit = threading.Timer(PART_LIMIT_S, site.spark.sparkContext.cancelAllJobs)
    limit.daemon = True
    limit.start()
    try:
        figures = part.run(site).as_json()
        return figures | {"from_disk_mb": round((from_disk_bytes() - before_bytes) / 1e6, 1)}
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, the other parts go on
        return {"failed": words_of(error)}
    finally:
        limit.cancel()


def words_of(error: BaseException) -> str:
    """The error's first words, and the last cause that a trace from inside Spark names."""
    causes = [line.strip() for line in str(error).splitlines() if line.startswith("Caused by: ")]
    words = [sentence_of(error)[:WORDS_MAX], *(cause[:WORDS_MAX] for cause in causes[-1:])]
    return f"{type(error).__name__}: {' '.join(words)}"


def command() -> str:
    return shlex.join(["python", "-m", "bench.pipeline", *sys.argv[1:]])


def show(measured: Sequence[Measured], console: Console) -> None:
    table = Table(title="Medians (least and most of the rounds)", title_justify="left")
    for name in ("part", "messages/s", "MB/s", "s"):
        table.add_column(name, justify="left" if name == "part" else "right")
    for part, figures in summarize(measured).items():
        cells = (f"{one['median']:,.4g}" for one in (figures["per_second"], figures["mb_s"]))
        seconds = figures["seconds"]
        spread = f"{seconds['median']:.2f} ({seconds['min']:.2f} to {seconds['max']:.2f})"
        table.add_row(TITLES[part], *cells, spread)
    console.print(table)
    for row in targets(measured):
        verdict = {True: "met", False: "not met", None: "not measured"}[row["met"]]
        ratio = f"{row['ratio']:.3g}" if "ratio" in row else "-"
        console.print(f"{verdict:12} {row['name']}: {ratio}, aim {row['aim']}", highlight=False)
    for one in failed(measured):
        words = f"round {one['round'] + 1}, {one['part']}: {one['figures']['failed']}"
        console.print(words, highlight=False, soft_wrap=True)


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=1024, help="bytes of a body, 32 at least")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--part", nargs="*", choices=PART_NAMES, default=PART_NAMES, metavar="NAME", help=str(PART_NAMES)
    )
    parser.add_argument("--folder", type=Path, help="where logs and archives are written")
    parser.add_argument("--save", default="pipeline", metavar="NAME", help="writes bench/results/NAME.json")
    found = parser.parse_args(arguments)
    if found.messages < 1 or found.rounds < 1 or found.size < 32:
        parser.error("at least one message, one round, and bodies of 32 bytes are needed")
    return found


def disk_bytes(arguments: argparse.Namespace) -> int:
    """About what a run takes at most: the bodies, three logs of all topics, and one archive."""
    logs = 3 * (1 + 2 * arguments.rounds)
    return int(arguments.messages * (arguments.size + 256) * (logs + 3))


def main() -> None:
    arguments = parse_arguments()
    end_on_signals()
    wants_java = any(name.startswith("java") for name in arguments.part)
    if wants_java and not (rivals_folder() / "classes/Pull.class").exists():
        raise SystemExit("bench/java/Pull.java is not compiled: run bench/get_rivals.sh java once.")
    free = shutil.disk_usage(arguments.folder or tempfile.gettempdir()).free
    if free < disk_bytes(arguments):
        needed = disk_bytes(arguments) / 1e9
        raise SystemExit(f"The run takes {needed:.0f} GB and {free / 1e9:.0f} GB are free: see --folder.")
    console = Console(stderr=True)
    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), TimeRemainingColumn())
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.folder) as folder,
        Progress(*columns, console=console, transient=True, refresh_per_second=1) as progress,
    ):
        pipeline = Pipeline(arguments, Path(folder), progress)
        pipeline.run()
    show(pipeline.measured, Console())
    sys.exit(1 if failed(pipeline.measured) else 0)


if __name__ == "__main__":
    main()
