"""The only access to the compiled modules: it returns their functions, or None if they are not compiled.

The module that owns a rule also has it in Python, and calls `native` once, at import. A compiled function
handles the ordinary case, a whole batch in one call, and leaves unusual input to the Python version. So only
the Python version refuses input and raises errors.

`python -m native` compiles the modules in place; an installation compiles them if there is a C compiler. With
LEDGERMQ_PURE=1 in the environment they are not used.
"""

import importlib
import os
from collections.abc import Callable
from typing import Any, Final

MODULES: Final = ("_log", "_remoting")
VERSION: Final = 15
"""Increased when a compiled function changes its arguments or results: an older build is then not used."""
PURE_VARIABLE: Final = "LEDGERMQ_PURE"


def function(module: str, name: str) -> Callable[..., Any] | None:
    """A compiled function, or None: then the caller uses its Python version."""
    loaded = _load(module)
    return None if loaded is None else getattr(loaded, name)


def compiled_modules() -> list[str]:
    """The names of the modules in use; none means pure Python."""
    return [name for name in MODULES if _load(name) is not None]


def _load(name: str) -> Any:
    if os.environ.get(PURE_VARIABLE) == "1":
        return None
    try:
        module: Any = importlib.import_module(f"native.{name}")
    except ImportError:
        return None
    return module if module.VERSION == VERSION else None
