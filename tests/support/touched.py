"""Which quick tests stand nearest to a change: those of the changed modules, then those that import them.

`python -m tests.support.touched [PATH...]` prints test files: of PATHs (files or folders), or of what differs
from the branch main and from the last commit. scripts/check runs them.
"""

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("tests/unit", "tests/golden")
FILES_MAX = 40
"""What two cores run within a minute; scripts/test runs all."""
ALWAYS = "tests/unit/test_tidy.py"


def main() -> None:
    changed = _given(sys.argv[1:]) if sys.argv[1:] else _changed()
    found = nearest_tests(changed)
    if len(found) > FILES_MAX:
        left_out = len(found) - FILES_MAX
        print(f"{left_out} more test files import what changed: scripts/test runs them", file=sys.stderr)
    print(*dict.fromkeys([ALWAYS, *found[:FILES_MAX]]), sep="\n")


def nearest_tests(changed: Iterable[str]) -> list[str]:
    """Test files, nearest first: changed ones, those named after a changed module, those that import one,
    those of its folder, those that import one through a helper.
    """
    paths = sorted(set(changed))
    modules = {module_of(path) for path in paths if path.endswith(".py")}
    stems = {f"test_{Path(path).stem}.py" for path in paths}
    tests = quick_tests()
    imports = {name: imported(path) for name, path in tests.items()}
    helpers = {
        module_of(str(path.relative_to(ROOT)))
        for path in (ROOT / "tests").rglob("*.py")
        if not path.name.startswith("test_") and modules & imported(path)
    }
    own = [path for path in paths if path in tests]
    named = [name for name, path in tests.items() if path.name in stems]
    importing = [name for name in tests if modules & imports[name]]
    of_folder = [name for path in paths for name in tests if is_of_folder(name, path)]
    through_helper = [name for name in tests if helpers & imports[name]]
    return list(dict.fromkeys([*own, *named, *importing, *of_folder, *through_helper]))


def is_of_folder(test: str, path: str) -> bool:
    """Whether the test is of the module's feature: those of `broker/send/…` are in `tests/unit/broker/send/`,
    or are `tests/unit/broker/test_send.py` and `test_send_….py`.
    """
    package, *folders, _ = Path(path).parts if "/" in path else ("", "")
    if not folders:
        return False
    folder = f"tests/unit/{package}/"
    return test.startswith(
        (f"{folder}{folders[0]}/", f"{folder}test_{folders[0]}.", f"{folder}test_{folders[0]}_")
    )


def quick_tests() -> dict[str, Path]:
    """All files of tests that start no processes, by their path from the project's root."""
    found = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("test_*.py"))
    return {str(path.relative_to(ROOT)): path for path in found}


def module_of(path: str) -> str:
    """The module's name, from a path from the project's root."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache
def imported(path: Path) -> frozenset[str]:
    """Names of all modules that a file may import, and of what it takes from them."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.update((node.module, *(f"{node.module}.{alias.name}" for alias in node.names)))
    return frozenset(found)


def _given(arguments: Iterable[str]) -> Iterator[str]:
    for argument in arguments:
        path = Path(argument).resolve()
        files = path.rglob("*.py") if path.is_dir() else [path]
        yield from (str(file.relative_to(ROOT)) for file in files)


def _changed() -> list[str]:
    """Files that differ from where this branch left main, and new ones that git does not know yet."""
    fork = _git("merge-base", "HEAD", "main") or ["HEAD"]
    return [
        *_git("diff", "--name-only", "--diff-filter=d", fork[0]),
        *_git("ls-files", "--others", "--exclude-standard"),
    ]


def _git(*arguments: str) -> list[str]:
    result = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return result.stdout.splitlines() if result.returncode == 0 else []


if __name__ == "__main__":
    main()
