"""docs/admin.md names every operation and every command of mqadmin, and none that is not there."""

import re
from pathlib import Path

from admin_api.app import create_app
from admin_api.settings import Settings

DOCS = Path(__file__).parents[3] / "docs"
MANUAL = (DOCS / "admin.md").read_text(encoding="utf-8")
COMPATIBILITY = (DOCS / "compatibility.md").read_text(encoding="utf-8")
PERFORMED = (DOCS.parent / "tests/compat/mqadmin_performance.py").read_text(encoding="utf-8")


def operations() -> set[str]:
    paths = create_app(Settings(namesrv="127.0.0.1:1")).openapi()["paths"]
    return {
        f"{method.upper()} {path.removeprefix('/api/v1')}"
        for path, each in paths.items()
        for method in each
        if path.startswith("/api/v1")
    }


def named() -> set[str]:
    """The calls in code spans: `GET /a`, `POST`, `DELETE /b`; a path without a method has that before it."""
    found: set[str] = set()
    for line in MANUAL.splitlines():
        methods: list[str] = []
        parent, is_open = "", False
        for span in re.findall(r"`([^`]+)`", line):
            match = re.fullmatch(r"(GET|PUT|POST|PATCH|DELETE)?( ?)(/[^ ?]*)?(\?.*)?", span)
            if match is None or not (match[1] or match[3]):
                continue
            if match[1]:
                methods = [*methods, match[1]] if is_open else [match[1]]
                is_open = match[3] is None
            if match[3] and methods:
                path = match[3]
                full = [path, f"{parent}{path}", f"{parent.rpartition('/')[0]}{path}"]
                found |= {f"{method} {each}" for method in methods for each in full}
                parent = path if match[1] else parent
    return found


def test_every_operation_is_named() -> None:
    assert operations() - named() == set()


def test_no_operation_is_named_that_is_not_there() -> None:
    spans = set(re.findall(r"`((?:GET|PUT|POST|PATCH|DELETE) /[^ `?]*)", MANUAL))
    assert {span.replace(" /api/v1/", " /") for span in spans} - operations() == set()


def test_every_command_of_mqadmin_has_its_counterpart_or_none_is_said() -> None:
    part = MANUAL.split("## Beside mqadmin", 1)[1]
    rows = [line.split("|")[1] for line in part.splitlines() if line.startswith("| `")]
    told = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    served = set(re.findall(r'self\.(?:run|until)\([^)]*?"([a-z]\w+)"', PERFORMED))
    left_out = set(re.findall(r"^\| `(\w+)` \|", COMPATIBILITY, re.MULTILINE))
    assert len(served) > 50
    assert (served | left_out) - set(told) == set()
    assert len(told) == len(set(told)) == 96
