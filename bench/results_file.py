"""The files of figures: bench/results/NAME.json, with machine, versions and date of the measurement."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from native import compiled_modules

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench/results"
PLAIN_LIST = re.compile(r"\[\s[^\[\]{}\"]*\]")
COMMIT_KEY = "LEDGERMQ_BENCH_COMMIT"
NO_CODE = (":(exclude)bench/results", ":(exclude)docs")
PACKAGES = ("ledgermq", "uvloop", "orjson", "isal", "msgpack")


def machine() -> dict[str, Any]:
    """The hardware and versions of the measurement, without the name of the machine."""
    cpu_info = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.+)", cpu_info.read_text()) if cpu_info.exists() else None
    return {
        "cpu": model.group(1) if model else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "load_before": [round(value, 2) for value in os.getloadavg()],
    }


def versions() -> dict[str, str]:
    native = ", ".join(compiled_modules()) or "none: pure Python"
    found = {"python": platform.python_version(), "commit": commit_of(ROOT), "compiled": native}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def commit_of(folder: Path) -> str:
    """The commit that is checked out there, marked where files differ from it in more than figures and pages
    about them. A tree without git's data is told it by the environment (COMMIT_KEY); else it is unknown,
    and why is said on stderr.
    """
    changes = ("status", "--porcelain", "--untracked-files=no", "--", ".", *NO_CODE)
    try:
        commit = _git(folder, "rev-parse", "--short", "HEAD")
        return f"{commit}-dirty" if _git(folder, *changes) else commit
    except (OSError, subprocess.SubprocessError) as error:
        told = os.environ.get(COMMIT_KEY)
        if told is None:
            reason = str(getattr(error, "stderr", None) or error).strip()
            print(f"the commit is unknown ({COMMIT_KEY} may name it): {reason}", file=sys.stderr)
        return told or "unknown"


def _git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), *words]
    found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    return found.stdout.strip()


def save(name: str, load: dict[str, Any], result: Any, measured_on: dict[str, Any] | None = None) -> Path:
    """Write one measurement over an older one of that name. `measured_on` is a `machine()` of its start."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    document = {
        "name": name,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": measured_on or machine(),
        "versions": versions(),
        "load": load,
        "result": result,
    }
    path.write_text(as_text(document), encoding="utf-8")
    return path


def read(name: str) -> dict[str, Any] | None:
    """The last result that was saved under this name."""
    path = RESULTS / f"{name}.json"
    found: dict[str, Any] | None = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    return found


def as_text(document: Any) -> str:
    """Indented JSON in which a list of plain values stands on one line."""
    text = json.dumps(document, indent=2, ensure_ascii=False)
    return PLAIN_LIST.sub(lambda found: " ".join(found.group().split()), text) + "\n"
