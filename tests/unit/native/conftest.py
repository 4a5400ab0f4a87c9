"""Without compiled modules there is nothing to compare; where a compiler is, they must be there."""

from __future__ import annotations

import importlib.util

from native.compiler import CannotCompileError, find_compiler

collect_ignore_glob = []

if importlib.util.find_spec("native._log") is None:
    try:
        find_compiler()
    except CannotCompileError:
        collect_ignore_glob.append("test_*.py")
