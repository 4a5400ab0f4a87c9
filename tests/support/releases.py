"""Releases of the past, built from the history into environments of their own, for tests of groups whose
nodes are of different releases.

`python -m tests.support.releases` builds those that are missing into .cache/releases. A release is a folder:

    source/        the tree of its commit
    environment/   a Python environment with the release, its C modules compiled, and what it needs
    installed      the commit, written last: without it the folder is made again
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / ".cache" / "releases"
RELEASES: Final[Mapping[str, str]] = MappingProxyType(
    {"0.1.0": "d6cef741f7bcc61c8d9dd8f3d40a8b5aeecdd564"},
)
"""Commits of the releases, the newest last: each the last one whose changelog has nothing [Unreleased]."""
STEP_LIMIT_S: Final = 300.0
_PINNED: Final = re.compile(r"^([A-Za-z0-9._-]+==[^ \\]+)", re.MULTILINE)


class ReleaseError(Exception):
    """A release cannot be built; the message says why."""


@dataclass(frozen=True, slots=True)
class Release:
    """A release and the folder that it is, or will be, installed into."""

    name: str
    commit: str
    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "environment" / "bin" / "python"

    def command(self, *arguments: str) -> list[str]:
        """Runs the release's modules: `-m broker …`. Isolated, so that neither the working directory nor a
        PYTHONPATH of the tests (those of Spark set one) puts this checkout's modules in their place.
        """
        return [str(self.python), "-I", *arguments]

    @property
    def is_installed(self) -> bool:
        mark = self.folder / "installed"
        return mark.exists() and mark.read_text(encoding="utf-8") == self.commit


def release(name: str, folder: Path = FOLDER) -> Release:
    """Raises KeyError for a release that is not in the list."""
    return Release(name, RELEASES[name], folder / name)


def install(wanted: Release) -> None:
    """Build the release, unless it is installed. Raises ReleaseError."""
    if wanted.is_installed:
        return
    shutil.rmtree(wanted.folder, ignore_errors=True)
    source, archive = wanted.folder / "source", wanted.folder / "source.tar"
    source.mkdir(parents=True)
    _run(
        "the history of this checkout does not have it (a shallow clone?)",
        ["git", "archive", f"--output={archive}", wanted.commit],
    )
    with tarfile.open(archive) as tree:
        tree.extractall(source, filter="data")
    archive.unlink()
    constraints = wanted.folder / "constraints.txt"
    pins = _PINNED.findall((source / "requirements-dev.txt").read_text(encoding="utf-8"))
    constraints.write_text("\n".join(pins), encoding="utf-8")
    environment = wanted.folder / "environment"
    _run("its environment cannot be made", [sys.executable, "-m", "venv", str(environment)])
    pip = [str(wanted.python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    _run("pip cannot install it; is the network reachable?", [*pip, "-c", str(constraints), str(source)])
    (wanted.folder / "installed").write_text(wanted.commit, encoding="utf-8")


def _run(what_failed: str, command: Sequence[str]) -> None:
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=STEP_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ReleaseError(f"{what_failed}: {error}") from error
    if done.returncode:
        raise ReleaseError(f"{what_failed}: {done.stderr.strip()[-2000:]}")


def main() -> int:
    """Install all releases; 1 when one cannot be had, after a line that says why."""
    for name in RELEASES:
        try:
            install(release(name))
        except ReleaseError as error:
            sys.stderr.write(f"release {name} ({RELEASES[name]}): {error}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
