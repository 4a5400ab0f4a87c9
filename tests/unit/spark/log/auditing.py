"""An audit without Spark: the same steps, one range after the other."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from rocketmq_spark.jobs.audit.job import find_replicas, plan_audit
from rocketmq_spark.jobs.audit.judgement import judge
from rocketmq_spark.jobs.audit.range_task import audit_range
from rocketmq_spark.jobs.audit.report import AuditReport, make_report
from tests.unit.spark.log.stores import Put, write_entries, write_records

NAMES = ("n0", "n1", "n2")


def audit(
    stores: Sequence[Path], range_bytes: int = 2000, wants_queues: bool = False, key: bytes | None = None
) -> AuditReport:
    replicas = find_replicas([str(store) for store in stores], (), "auto", {})
    results = [audit_range(cell, replicas, wants_queues) for cell in plan_audit(replicas, range_bytes)]
    about = {
        "began": "2026-01-31T05:00:00.000+00:00",
        "seconds": 0.1,
        "versions": {"python": "3"},
        "options": {"stores": [], "rangeBytes": range_bytes, "checkQueues": wants_queues},
    }
    return make_report(about, replicas, results, judge(replicas, results), key)


def write_group(
    root: Path, puts: Sequence[Put], committed: Sequence[int | None] = (None, None, None)
) -> list[Path]:
    """Three replicas that hold the same entries; the folders of their logs."""
    return [
        write_entries(root / name, puts, committed=upto, node=f"dledger-{name}")
        for name, upto in zip(NAMES, committed, strict=True)
    ]


def write_plain_group(root: Path, puts: Sequence[Put]) -> list[Path]:
    """Two plain logs of the same bytes, with consume queues."""
    write_records(root / "a", puts)
    shutil.copytree(root / "a", root / "b")
    return [root / "a" / "commitlog", root / "b" / "commitlog"]
