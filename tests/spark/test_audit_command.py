"""`ledgermq spark audit` as a process: exit codes, reports, signatures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import orjson

from tests.integration.client_runs import QUICK_JVM, ROOT
from tests.unit.spark.log.auditing import write_group
from tests.unit.spark.log.stores import flip, numbered

LIMIT_S = 120.0


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rocketmq_spark.jobs", "audit", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "SPARK_SUBMIT_OPTS": " ".join(QUICK_JVM)}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment
    )


def test_a_divergence_is_reported_signed_and_verified(tmp_path: Path) -> None:
    folders = write_group(tmp_path, numbered(60))
    flip(folders[1] / "data" / f"{0:020d}", 48 + 95)
    key = tmp_path / "key"
    key.write_bytes(b"a secret\n")
    report = tmp_path / "audit"
    options = ["--report", report, "--sign-key", key, "--range-size", "4KiB", "--master", "local[2]"]
    found = run(f"{tmp_path}/n*", *options, "--names", "a,b,c")
    assert found.returncode == 2, found.stderr
    assert "first divergence: replica b, entry 0 position 0, record.body" in found.stdout
    content = orjson.loads(Path(f"{report}.json").read_bytes())
    assert content["verdict"] == "different"
    assert content["signature"]["algorithm"] == "HMAC-SHA256"
    assert "Not identical" in Path(f"{report}.html").read_text(encoding="utf-8")
    assert run("--verify", f"{report}.json", "--sign-key", key).returncode == 0
    key.write_bytes(b"another")
    verified = run("--verify", f"{report}.json", "--sign-key", key)
    assert verified.returncode == 2
    assert "not signed with this key" in verified.stdout


def test_wrong_usage_proves_nothing() -> None:
    unknown = run("--raneg-size", "1MiB", "x")
    assert unknown.returncode == 1
    assert "--range-size" in unknown.stderr
    nothing = run()
    assert nothing.returncode == 1
    assert "which stores?" in nothing.stderr
