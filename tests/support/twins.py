"""The tests of what has a compiled twin: scripts/test runs them a second time in pure Python.

`python -m tests.support.twins` prints their files. A module owns a twin when it asks `native` for it; its
tests are those that import it, or the store, the engine or the protocol on top of it.
"""

from tests.support.touched import ROOT, imported, module_of, quick_tests

PACKAGES = ("broker", "commitlog", "dledger", "remoting", "rocketmq_spark")
DRIVERS = ("commitlog", "dledger", "remoting")
"""Packages whose code around a twin differs with it: a thread or asyncio instead of the writer or epoll."""
COMPILED_ONLY = "tests/unit/native"


def twin_tests() -> list[str]:
    """The test files, relative to the project's root."""
    imports = {
        module_of(str(path.relative_to(ROOT))): set(imported(path))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    owners = {module for module, names in imports.items() if names & {"native", "native.function"}}
    drivers = {m for m, names in imports.items() if m.startswith(DRIVERS) and names & owners}
    return [
        name
        for name, path in quick_tests().items()
        if not name.startswith(COMPILED_ONLY) and set(imported(path)) & (owners | drivers)
    ]


if __name__ == "__main__":
    print(*twin_tests(), sep="\n")
