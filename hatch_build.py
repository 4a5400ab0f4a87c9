"""Hatchling's build hook: compiles the C modules of `native` into the wheel, or in place when the
installation is editable. Where that cannot be done it says so and the installation is pure Python.
"""

import importlib.util
import shutil
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeBuildHook(BuildHookInterface[Any]):  # type: ignore[misc]
    """For the wheel target."""

    PLUGIN_NAME = "custom"
    _made_in: Path | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """`version` is "editable" or "standard"."""
        compiler = _load(Path(self.root) / "native" / "compiler.py")
        in_place = version == "editable"
        if not in_place:
            self._made_in = Path(tempfile.mkdtemp(prefix="ledgermq-native-"))
        target = self._made_in or compiler.FOLDER
        try:
            made = compiler.compile_modules(target)
        except compiler.CannotCompileError as error:
            self.app.display_warning(f"LedgerMQ is installed without its compiled modules: {error}")
            return
        if not in_place:
            build_data["force_include"].update({str(path): f"native/{path.name}" for path in made})
            build_data["pure_python"] = False
            build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """The wheel has the modules now."""
        if self._made_in is not None:
            shutil.rmtree(self._made_in)


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("ledgermq_native_compiler", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
