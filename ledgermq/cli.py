"""The entry point of `ledgermq`: it prepares the process and turns errors into messages and exit codes.

The settings must be made before typer is imported, so this module imports only small modules itself. It
defers modules of the standard library that libraries import and commands seldom use: each is loaded at its
first use. `importlib.metadata` alone imports all of `email` and `zipfile`, for a search for plugins that is
turned off: a twelfth of a short command's time.
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
"""Modules that typer and pydantic import but a command seldom uses; and the functions imported from each."""


def main() -> None:
    """The entry point: the one place where errors become messages and exit codes."""
    # Imports make tens of thousands of objects and no garbage: the collector would take a tenth of a short
    # command's time. In a long command it still runs, but less often.
    gc.set_threshold(GARBAGE_THRESHOLD)
    # At its exit Python runs the collector several times more: a sixth of the time.
    atexit.register(gc.freeze)
    # Pydantic searches every installed package for plugins, which is slow; we use none.
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
        # Only a `spark` command raises these; other commands do not import their module.
        errors = sys.modules.get("rocketmq_spark.errors")
        if errors is None or not isinstance(error, errors.RocketmqSparkError):
            raise
        from rocketmq_spark.jobs.cli import print_error

        sys.exit(print_error(error))


_LOADING: Final = threading.RLock()


class _Deferred(ModuleType):
    """A placeholder for a module; at its first use the module replaces it."""

    def __getattr__(self, name: str) -> Any:
        if name == "__path__":  # `from name import ...` asks for it; only packages have one
            raise AttributeError(name)
        return getattr(_load(self), name)


def defer(name: str, *functions: str) -> None:
    """Defer the import of a module. `functions`: names that others import by `from name import function`,
    which must not count as a use of the module. A module that is already loaded stays.
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
    with _LOADING:  # if two threads use it first, the second must not remove the loaded module
        if sys.modules.get(name) is module:
            del sys.modules[name]
        return importlib.import_module(name)


def _put(module: ModuleType) -> None:
    parent, _, child = module.__name__.rpartition(".")
    if parent:
        setattr(importlib.import_module(parent), child, module)
    sys.modules[module.__name__] = module
