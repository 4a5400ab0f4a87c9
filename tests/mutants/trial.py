"""Plants a mutant and runs what must notice it, in a process of its own."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.mutant import Case, Catcher, Edit, Mutant, Seeds
from tests.mutants.planting import planted
from tests.support.new_seeds import first_new_seed

TIMEOUT_S = 240
TESTS_FAILED = 1
"""pytest's exit code for failed tests; 2 to 5 mean that it could not run them."""
_FAILED_LINE = re.compile(r"^(?:FAILED|ERROR) \S+(?:\[.*\])? - (.*)$", re.MULTILINE)


class TrialError(Exception):
    """The trial says nothing about the mutant: what was to notice it could not be run."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a trial ended."""

    mutant: Mutant
    caught_by: str | None
    """The seed or test that failed; None when all passed."""
    words: str
    duration_s: float


def try_mutant(mutant: Mutant, *, is_fresh: bool = False) -> Verdict:
    """Plants the mutant. With `is_fresh`, random seeds are searched instead of the known one.

    Raises EditError when the mutant no longer fits the source, TrialError when nothing can be said.
    """
    begin_s = time.monotonic()
    caught_by, words = try_edits(mutant.edits, mutant.catcher, is_fresh=is_fresh)
    return Verdict(mutant, caught_by, words, time.monotonic() - begin_s)


def try_edits(edits: Sequence[Edit], catcher: Catcher, *, is_fresh: bool = False) -> tuple[str | None, str]:
    """(what failed or None, in which words) with these edits in the source."""
    with planted(edits) as root:
        if isinstance(catcher, Case):
            words = _run_tests([catcher.test], root)
            return (None, "the test passed") if words is None else (catcher.test, words)
        seeds = _seeds(catcher, is_fresh)
        failure = _run_seeds(catcher.world, seeds, root)
        return failure or (None, f"none of {len(seeds)} seeds of {catcher.world}")


def try_nothing(catchers: Iterable[Catcher]) -> str | None:
    """Runs all that is to notice mutants on the source as it is. Returns what failed; None is good."""
    tests: set[str] = set()
    seeds: dict[str, set[int]] = {}
    for catcher in catchers:
        if isinstance(catcher, Case):
            tests.add(catcher.test)
        else:
            seeds.setdefault(catcher.world, set()).add(catcher.seed)
    with planted(()) as root:
        words = _run_tests(sorted(tests), root) if tests else None
        for world, numbers in seeds.items():
            failure = _run_seeds(world, sorted(numbers), root)
            words = words or (": ".join(failure) if failure else None)
    return words


def _seeds(catcher: Seeds, is_fresh: bool) -> list[int]:
    if is_fresh:
        first = first_new_seed()
        return [*range(first, first + catcher.seeds_max)]
    return [catcher.seed, *range(catcher.seeds_max)]


def _run_seeds(world: str, seeds: Sequence[int], root: Path) -> tuple[str, str] | None:
    finished = _run(["-m", "tests.mutants.worlds", world, *map(str, seeds)], root)
    if finished.returncode != 0:
        raise TrialError(finished.stderr[-2000:])
    if not finished.stdout:
        return None
    failure = json.loads(finished.stdout)
    return f"{world} seed {failure['seed']}", str(failure["words"])


def _run_tests(tests: Sequence[str], root: Path) -> str | None:
    """The words of the first test that fails."""
    arguments = [
        "-m",
        "pytest",
        "-x",
        "-q",
        "--no-header",
        "--tb=short",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:anyio",
    ]
    finished = _run([*arguments, *tests], root)
    if finished.returncode == 0:
        return None
    if finished.returncode != TESTS_FAILED:
        raise TrialError(finished.stdout[-2000:] + finished.stderr[-2000:])
    found = _FAILED_LINE.findall(finished.stdout)
    return found[0] if found else "a test failed"


def _run(arguments: Sequence[str], root: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(root), "COLUMNS": "300"}
    environment.pop("LEDGERMQ_LONG", None)
    try:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise TrialError(f"no end within {TIMEOUT_S} s: {arguments}") from error
