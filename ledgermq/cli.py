"""The entry point of `ledgermq`: how its process starts, and how errors end.

Its settings must be made before typer is imported, so it imports nothing heavy itself. It defers modules of
the standard library that libraries import and commands seldom use: they are loaded when something of them is
used. `importlib.metadata` brings all of `email` and `zipfile` with it, for a search of plugins that is turned
off: a twelfth of a short command's time.
"""

import atexit
import gc
import importlib
import importlib.util
import os
import sys
import threading
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Final

from ledgermq.errors import INTERRUPTED, UserError

GARBAGE_THRESHOLD: Final = 100_000
"""New objects between two runs of the garbage collector; Python's default is 700."""
UNUSED: Final[Mapping[str, tuple[str, ...]]] = {
    "importlib.metadata": ("entry_points",),
    "secrets": (),
    "difflib": ("get_close_matches",),
}
"""What typer and pydantic import and a command seldom uses, and the functions they import from it."""


def main() -> None:
    """The entry point: the one place where errors become words and exit codes."""
    # Importing makes ten thousands of objects and no garbage: collecting again and again meanwhile costs a
    # tenth of a short command's time. A long command is still collected, less often.
    gc.set_threshold(GARBAGE_THRESHOLD)
    # While Python ends it collects several times again: a sixth of the time.
    atexit.register(gc.freeze)
    # Pydantic searches plugins in every installed package, which is slow; we use none.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    for name, functions in UNUSED.items():
        defer(name, *functions)
    try:
        from ledgermq.app import app

        app()
    except UserError as error:
        from ledgermq.output import remark

        remark(f"error: {error}")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        # Only a command of `spark` raises these; for the others their module is not there.
        errors = sys.modules.get("rocketmq_spark.errors")
        if errors is None or not isinstance(error, errors.RocketmqSparkError):
            raise
        from rocketmq_spark.jobs.cli import print_error

        sys.exit(print_error(error))


_LOADING: Final = threading.RLock()


class _Deferred(ModuleType):
    """A placeholder of a module until it is used; then the module replaces it."""

    def __getattr__(self, name: str) -> Any:
        if name == "__path__":  # asked for by each `from name import ...`; a package has one
            raise AttributeError(name)
        return getattr(_load(self), name)


def defer(name: str, *functions: str) -> None:
    """`functions` are those that others import by `from name import function`, which would be
    a use. A module that is there already stays.
    """
    if name in sys.modules:
        return
    module = _Deferred(name)
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        module.__path__ = spec.submodule_search_locations
    for function in functions:
        setattr(module, function, _calling(module, function))
    _put(module)


def _calling(module: ModuleType, function: str) -> Any:
    def call(*args: Any, **options: Any) -> Any:
        return getattr(_load(module), function)(*args, **options)

    return call


def _load(module: ModuleType) -> ModuleType:
    name = module.__name__
    with _LOADING:  # of two threads that use it first, the second must not remove the loaded one again
        if sys.modules.get(name) is module:
            del sys.modules[name]
        return importlib.import_module(name)


def _put(module: ModuleType) -> None:
    parent, _, child = module.__name__.rpartition(".")
    if parent:
        setattr(importlib.import_module(parent), child, module)
    sys.modules[module.__name__] = module
