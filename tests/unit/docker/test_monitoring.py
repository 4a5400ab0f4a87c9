"""Alert rules and board: they fire when they should, and ask for nothing that nobody tells."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from tests.support.debian_programs import find_program

ROOT = Path(__file__).resolve().parents[3]
DOCKER = ROOT / "docker"
RULES = DOCKER / "prometheus" / "rules.yml"
BOARD = DOCKER / "grafana" / "dashboards" / "ledgermq.json"
PAGE = ROOT / "docs" / "monitoring.md"
NAME = re.compile(r"\bledgermq_\w+")
LIMIT_S = 60


def run(*arguments: str) -> None:
    result = subprocess.run(
        [find_program("promtool"), *arguments],
        cwd=DOCKER / "prometheus",
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def told() -> set[str]:
    """The names in docs/monitoring.md, which tests hold against what brokers and admin tell."""
    return set(re.findall(r"^\| `(ledgermq_\w+)`", PAGE.read_text(encoding="utf-8"), re.MULTILINE))


def expressions(value: object) -> list[str]:
    """Every query of a board."""
    if isinstance(value, dict):
        own = [value[key] for key in ("expr", "definition") if isinstance(value.get(key), str)]
        return own + [found for each in value.values() for found in expressions(each)]
    if isinstance(value, list):
        return [found for each in value for found in expressions(each)]
    return []


def unknown(text: str) -> set[str]:
    names = {re.sub(r"_(bucket|sum|count)$", "", name) for name in NAME.findall(text)}
    return names - told()


def test_every_alert_fires_when_it_should_and_not_before() -> None:
    run("test", "rules", "rules_test.yml")


def test_configuration_and_rules_are_valid() -> None:
    run("check", "config", "--syntax-only", "prometheus.yml")
    run("check", "rules", "rules.yml")


def test_every_alert_has_a_test_and_a_place_in_the_docs() -> None:
    alerts = set(re.findall(r"alert: (\w+)", RULES.read_text(encoding="utf-8")))
    assert len(alerts) >= 10
    tested = (DOCKER / "prometheus" / "rules_test.yml").read_text(encoding="utf-8")
    assert {name for name in alerts if name not in tested} == set()
    assert alerts == set(re.findall(r"^\| (LedgerMQ\w+) ", PAGE.read_text(encoding="utf-8"), re.MULTILINE))


def test_alerts_ask_for_what_is_told() -> None:
    lines = [line for line in RULES.read_text(encoding="utf-8").splitlines() if "summary" not in line]
    assert unknown("\n".join(lines)) == set()


def test_the_board_asks_for_what_is_told() -> None:
    found = expressions(json.loads(BOARD.read_text(encoding="utf-8")))
    assert len(found) > 30
    assert {query: unknown(query) for query in found if unknown(query)} == {}


def test_the_queries_of_the_board_can_be_read(tmp_path: Path) -> None:
    """As recording rules, with Grafana's variables filled in."""
    found = expressions(json.loads(BOARD.read_text(encoding="utf-8")))
    queries = [query for query in found if "label_values" not in query]
    rules = [
        {"record": f"board:query{at}", "expr": query.replace("$__rate_interval", "1m").replace("$group", "a")}
        for at, query in enumerate(queries)
    ]
    file = tmp_path / "board.yml"
    file.write_text(json.dumps({"groups": [{"name": "board", "rules": rules}]}))
    run("check", "rules", str(file))
