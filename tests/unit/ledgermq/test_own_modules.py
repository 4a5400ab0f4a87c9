"""Processes are started from the installation, whatever lies in the folder where the command is typed."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ledgermq.local.plan import ClusterPlan
from ledgermq.local.processes import AdminOptions, admin_command, namesrv_command, node_argv

LIMIT_S = 20


def test_folders_named_like_our_packages_are_passed_over(tmp_path: Path) -> None:
    plan = ClusterPlan(tmp_path)
    commands = [AdminOptions("127.0.0.1:9876", "127.0.0.1", 8080).argv(), admin_command(plan).argv]
    commands += [namesrv_command(plan, plan.namesrvs[0]).argv, node_argv(plan.nodes[0].config_file)]
    for name in ("admin_api", "broker", "namesrv"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__main__.py").write_text("print('a stranger')\n")
    for command in commands:
        done = subprocess.run(
            [*command[: command.index("-m") + 2], "--help"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=True,
        )
        assert "stranger" not in done.stdout, command
