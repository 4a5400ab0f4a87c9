"""Without compiled modules, or with these left out, there is nothing to compare; where a compiler is, they
must be there.
"""

from __future__ import annotations

import importlib.util
import os

from native.compiler import CannotCompileError, find_compiler

collect_ignore_glob = []

if os.environ.get("LEDGERMQ_PURE") == "1":
    collect_ignore_glob.append("test_*.py")
elif importlib.util.find_spec("native._log") is None:
    try:
        find_compiler()
    except CannotCompileError:
        collect_ignore_glob.append("test_*.py")
