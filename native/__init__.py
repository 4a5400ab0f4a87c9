"""The one seam to the compiled modules: what they offer, or None where they are not there.

The module that owns a rule also has it in Python, and calls `native` once, at import. A compiled function
does the ordinary case, a whole batch in one call, and hands back what it finds unusual, so that every refusal
and every error has the Python version as its only source.

`python -m native` compiles the modules in place; an installation does so by itself where a C compiler is.
LEDGERMQ_PURE=1 in the environment leaves them out.
"""

import importlib
import os
from collections.abc import Callable
from typing import Any, Final

MODULES: Final = ("_log", "_remoting")
VERSION: Final = 13
"""Raised whenever a compiled function takes or gives something else: an older build is then not used."""
PURE_VARIABLE: Final = "LEDGERMQ_PURE"


def function(module: str, name: str) -> Callable[..., Any] | None:
    """A compiled function, or None: the caller's own Python does it then."""
    loaded = _load(module)
    return None if loaded is None else getattr(loaded, name)


def compiled_modules() -> list[str]:
    """Which of the modules are used; none means pure Python."""
    return [name for name in MODULES if _load(name) is not None]


def _load(name: str) -> Any:
    if os.environ.get(PURE_VARIABLE) == "1":
        return None
    try:
        module: Any = importlib.import_module(f"native.{name}")
    except ImportError:
        return None
    return module if module.VERSION == VERSION else None
