"""Which tests run in pure Python as well, and which have to take all branches of the modules without I/O.

`python -m tests.support.twins` prints the former's files, with `--covered` the latter's (scripts/coverage).
A module owns a twin when it asks `native` for it; its tests are those that import it, or the store, the
engine or the protocol on top of it.
"""

import sys
import tomllib

from tests.support.touched import ROOT, imported, module_of, nearest_tests, quick_tests

PACKAGES = ("broker", "commitlog", "dledger", "grpc_endpoint", "remoting", "rocketmq_spark")
DRIVERS = ("commitlog", "dledger", "remoting")
"""Packages whose code around a twin differs with it: a thread or asyncio instead of the writer or epoll."""
COMPILED_ONLY = "tests/unit/native"


def twin_tests() -> list[str]:
    """The test files, relative to the project's root."""
    imports = {
        module_of(str(path.relative_to(ROOT))): imported(path)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    owners = {module for module, names in imports.items() if names & {"native", "native.function"}}
    drivers = {m for m, names in imports.items() if m.startswith(DRIVERS) and names & owners}
    return [
        name
        for name, path in quick_tests().items()
        if not name.startswith(COMPILED_ONLY) and imported(path) & (owners | drivers)
    ]


def covered_files() -> list[str]:
    """The modules of which every branch is to be taken, by `tool.coverage.run` of pyproject.toml."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        patterns = tomllib.load(file)["tool"]["coverage"]["run"]["include"]
    return [str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern)]


def covered_tests() -> list[str]:
    """The tests that are to take these branches: of the modules' own packages and compiled twins, and
    the golden traces. A test counts as well when only a helper beside it imports the module.
    """
    files = covered_files()
    units = {f"tests/unit/{file.partition('/')[0]}" for file in files}
    folders = {f"{unit}/" for unit in units} | {"tests/golden/", f"{COMPILED_ONLY}/"}
    modules = {module_of(file) for file in files}
    helpers = [
        str(path.relative_to(ROOT))
        for unit in sorted(units)
        for path in (ROOT / unit).rglob("*.py")
        if not path.name.startswith("test_") and modules & imported(path)
    ]
    golden = [name for name in quick_tests() if name.startswith("tests/golden/")]
    nearest = dict.fromkeys([*nearest_tests([*files, *helpers]), *golden])
    return [name for name in nearest if name.startswith(tuple(folders))]


if __name__ == "__main__":
    covered = covered_tests()
    print(*(covered if "--covered" in sys.argv[1:] else sorted({*twin_tests()} - {*covered})), sep="\n")
