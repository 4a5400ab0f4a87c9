"""The code base under test: sizes, bans, links, and modules that import without a warning."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = (
    *("admin_api", "broker", "commitlog", "dledger", "namesrv", "native", "remoting", "sockets"),
    "telemetry",
)
PACKAGES = (*LIBRARIES, "ledgermq", "bench")
FUNCTION_LINES_MAX = 70
FOLDERS_OF_OTHERS = {".git", ".venv", ".cache", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis"}
FOLDERS_OF_OTHERS |= {".import_linter_cache", "__pycache__", "node_modules", "data", "dist", "build"}
TEXT_SUFFIXES = {"", ".c", ".cfg", ".css", ".go", ".h", ".html", ".java", ".js", ".json", ".md", ".py"}
TEXT_SUFFIXES |= {".sh", ".toml", ".txt", ".xml", ".yaml", ".yml"}
MACHINE_PATH = re.compile(r"/(?:home|root|Users|work|var/folders)/[\w.-]+")
MARKDOWN_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCED_CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


@cache
def files() -> tuple[Path, ...]:
    """Every text file of the project, relative to its root."""
    found = []
    pending = [ROOT]
    while pending:
        for path in pending.pop().iterdir():
            if path.is_dir():
                if path.name not in FOLDERS_OF_OTHERS and not path.name.endswith(".egg-info"):
                    pending.append(path)
            elif path.suffix in TEXT_SUFFIXES and path.name not in FOLDERS_OF_OTHERS:
                found.append(path.relative_to(ROOT))
    return tuple(sorted(found))


def python_files() -> list[Path]:
    return [path for path in files() if path.suffix == ".py"]


def read(path: Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@dataclass(slots=True)
class Seen:
    """What the tests ask of a module's tree, which is read once: line numbers, and lines of each function."""

    functions: dict[str, int] = field(default_factory=dict)
    prints: list[int] = field(default_factory=list)
    sleeps: list[int] = field(default_factory=list)
    relative_imports: list[int] = field(default_factory=list)


@cache
def seen(path: Path) -> Seen:
    found = Seen()
    for node in ast.walk(ast.parse(read(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            found.functions[node.name] = max(lines, found.functions.get(node.name, 0))
        elif isinstance(node, ast.ImportFrom) and node.level > 0:
            found.relative_imports.append(node.lineno)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            found.prints.append(node.lineno)
        elif isinstance(node, ast.Call) and is_sleep(node):
            found.sleeps.append(node.lineno)
    return found


def is_sleep(node: ast.Call) -> bool:
    """A call of time.sleep or asyncio.sleep for longer than a turn of the loop."""
    if (
        not isinstance(node, ast.Call)
        or not isinstance(node.func, ast.Attribute)
        or node.func.attr != "sleep"
    ):
        return False
    return ast.unparse(node.func) in {"asyncio.sleep", "time.sleep"} and ast.unparse(node.args[0]) != "0"


def test_project_files_are_found() -> None:
    """Otherwise the rest of this file would pass by looking at nothing."""
    assert Path("pyproject.toml") in files()
    assert {path.parts[0] for path in python_files()} >= set(LIBRARIES)


def test_functions_are_short() -> None:
    lines = {
        f"{path}:{name}": count for path in python_files() for name, count in seen(path).functions.items()
    }
    assert {name: count for name, count in lines.items() if count > FUNCTION_LINES_MAX} == {}


def test_no_path_of_a_machine_is_named() -> None:
    found = {str(path): MACHINE_PATH.findall(read(path)) for path in files()}
    assert {path: names for path, names in found.items() if names} == {}


def test_libraries_log_and_never_print() -> None:
    """Output belongs to the command line, the benchmarks and what a process says before its log exists."""
    found = [
        f"{path}:{line}"
        for path in python_files()
        if path.parts[0] in LIBRARIES and path.name != "__main__.py"
        for line in seen(path).prints
    ]
    assert found == []


def test_no_module_is_a_bag_of_utilities() -> None:
    names = {"utils.py", "util.py", "helpers.py", "misc.py", "common.py"}
    assert [str(path) for path in python_files() if path.name in names] == []


def test_package_init_files_hold_no_code() -> None:
    """A docstring at most, which says what the folder is for. Two packages are seams, two name what they
    have for users.
    """
    seams = {
        Path("native/__init__.py"),
        Path("rocketmq_spark/__init__.py"),
        Path("ledgermq/client/__init__.py"),
        Path("ledgermq/testing/__init__.py"),
    }
    found = [
        str(path)
        for path in python_files()
        if path.name == "__init__.py" and path not in seams
        for number, node in enumerate(ast.parse(read(path)).body)
        if number or not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]
    assert found == []


WAITING_IS_THE_SUBJECT = {
    "tests/unit/admin_api/test_http_server.py": "a client that reads a long answer slowly",
    "tests/unit/admin_api/test_main.py": "a process that begins to listen",
    "tests/unit/dledger/test_transport_stalls.py": "a loop that stands still",
    "tests/unit/ledgermq/test_load_run.py": "a broker that answers late",
    "tests/unit/remoting/test_broken_transports.py": "a loop that stands still",
}


def test_unit_tests_do_not_sleep() -> None:
    """They poll with a deadline (tests/support/polling.py), set the clock, or wait for an event."""
    found = {
        str(path) for path in python_files() if path.parts[:2] == ("tests", "unit") and seen(path).sleeps
    }
    assert found == set(WAITING_IS_THE_SUBJECT)


def test_imports_are_absolute() -> None:
    found = [f"{path}:{line}" for path in python_files() for line in seen(path).relative_imports]
    assert found == []


def links(path: Path) -> Iterator[str]:
    for target in MARKDOWN_LINK.findall(FENCED_CODE.sub("", read(path))):
        if not re.match(r"[a-z]+:", target):
            yield target


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts make them."""
    headings = re.findall(r"^#+ +(.+?) *#*$", FENCED_CODE.sub("", read(path)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def is_broken(page: Path, link: str) -> bool:
    name, _, anchor = link.partition("#")
    target = (ROOT / page.parent / name).resolve() if name else ROOT / page
    if not target.exists():
        return True
    return bool(anchor) and target.suffix == ".md" and anchor not in anchors(target.relative_to(ROOT))


def test_links_between_pages_resolve() -> None:
    pages = [path for path in files() if path.suffix == ".md"]
    assert [f"{page}: {link}" for page in pages for link in links(page) if is_broken(page, link)] == []


def module_names() -> list[str]:
    return [
        ".".join(path.with_suffix("").parts)
        for path in python_files()
        if path.parts[0] in PACKAGES and path.name not in {"__init__.py", "__main__.py"}
    ]


def test_every_module_imports_without_a_warning() -> None:
    """In a fresh process, where `-W error` makes a failure of whatever Python warns of."""
    program = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"
    command = [sys.executable, "-W", "error", "-c", program, *module_names()]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
