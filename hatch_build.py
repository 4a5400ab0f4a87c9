"""Hatchling's build hook: compiles the C modules of `native` into the wheel, or in place when the
installation is editable. Where that cannot be done it says so and the installation is pure Python.
"""

import importlib.util
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeBuildHook(BuildHookInterface[Any]):  # type: ignore[misc]
    """For the wheel target."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """`version` is "editable" or "standard"."""
        compiler = _load(Path(self.root) / "native" / "compiler.py")
        in_place = version == "editable"
        target = compiler.FOLDER if in_place else Path(tempfile.mkdtemp(prefix="ledgermq-native-"))
        try:
            made = compiler.compile_modules(target)
        except compiler.CannotCompileError as error:
            self.app.display_warning(f"LedgerMQ is installed without its compiled modules: {error}")
            return
        if not in_place:
            build_data["force_include"].update({str(path): f"native/{path.name}" for path in made})
            build_data["pure_python"] = False
            build_data["infer_tag"] = True


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("ledgermq_native_compiler", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
