"""What all tests share: their order, the marker `long`, and the figures that are shown at the end."""

from __future__ import annotations

import gc
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support.lanes import QUICK, SPARK, Lanes
from tests.support.long_runs import examples, is_long_run
from tests.support.measures import lines_of

EXAMPLES = 50
# How long an example takes, or is drawn, says how busy the machine is.
settings.register_profile(
    "ledgermq",
    deadline=None,
    max_examples=examples(EXAMPLES),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ledgermq")


def pytest_configure() -> None:
    """A run that is asked to end stops what it has started, as one that is interrupted does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is read for the tests stays: the garbage collector never looks at it, then or in a test."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m integration` the folders that have no such tests are not read: it takes half a minute."""
    is_quick = collection_path in [config.rootpath / folder for folder in QUICK]
    return True if is_quick and config.option.markexpr == "integration" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those marked `long` are skipped unless `scripts/test --long` asked for them."""
    items.sort(key=_turn)
    if lost := [item.nodeid for item in items if _turn(item)[0] and item.nodeid.startswith(QUICK)]:
        raise pytest.UsageError(f"no run would find these tests, marked integration: {', '.join(lost)}")
    if is_long_run():
        return
    for item in items:
        if item.get_closest_marker("long") is not None:
            item.add_marker(pytest.mark.skip(reason="runs only with scripts/test --long"))


def _turn(item: pytest.Item) -> tuple[bool, bool]:
    """Quick tests go first, then those with Spark: they take one worker for long, others fill the rest."""
    is_integration = item.get_closest_marker("integration") is not None
    return is_integration, is_integration and not item.nodeid.startswith(f"{SPARK}/")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Lanes | None:
    """Instead of xdist's own scheduler for `--dist loadfile`."""
    return Lanes(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what was measured."""
    lines = lines_of(terminalreporter.getreports("passed"))
    if lines:
        terminalreporter.section("measured")
        for line in lines:
            terminalreporter.write_line(line)
