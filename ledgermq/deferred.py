"""Modules of the standard library that the libraries below import while they are imported, and that a command
has seldom a use for: they are loaded when something of them is used.

`importlib.metadata` brings all of `email` and `zipfile` with it, for a search of plugins that is turned off:
a twelfth of a short command's time.
"""

import importlib
import importlib.util
import sys
import threading
from types import ModuleType
from typing import Any, Final

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
