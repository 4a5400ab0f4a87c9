"""Hatchling's build hook. It compiles the C modules of `native` into the wheel, or in place when the
installation is editable; where that cannot be done it says so and the installation is pure Python. It makes
the message classes of `grpc_endpoint` in the same places. And it adds the software bill of materials
(PEP 770).
"""

import importlib.util
import shutil
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BILL = "ledgermq.cdx.json"
"""In the wheel's `.dist-info/sboms`."""


class BuildHook(BuildHookInterface[Any]):  # type: ignore[misc]
    """For the wheel target."""

    PLUGIN_NAME = "custom"
    _made_in: Path | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """`version` is "editable" or "standard"."""
        self._made_in = Path(tempfile.mkdtemp(prefix="ledgermq-build-"))
        self._add_bill(self._made_in, build_data)
        self._generate(self._made_in, version == "editable", build_data)
        self._compile(self._made_in, version == "editable", build_data)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """The wheel has the files now."""
        if self._made_in is not None:
            shutil.rmtree(self._made_in)

    def _add_bill(self, folder: Path, build_data: dict[str, Any]) -> None:
        bills = _load(Path(self.root) / "ledgermq" / "bill_of_materials.py")
        path = folder / BILL
        path.write_bytes(bills.bill_of_wheel(Path(self.root)))
        build_data["sbom_files"].append(str(path))

    def _generate(self, folder: Path, in_place: bool, build_data: dict[str, Any]) -> None:
        generator = _load(Path(self.root) / "grpc_endpoint" / "generate.py")
        made = generator.generate(generator.PACKAGE if in_place else folder)
        if not in_place:
            build_data["force_include"].update({str(path): f"grpc_endpoint/{path.name}" for path in made})

    def _compile(self, folder: Path, in_place: bool, build_data: dict[str, Any]) -> None:
        compiler = _load(Path(self.root) / "native" / "compiler.py")
        try:
            made = compiler.compile_modules(compiler.FOLDER if in_place else folder)
        except compiler.CannotCompileError as error:
            self.app.display_warning(f"LedgerMQ is installed without its compiled modules: {error}")
            return
        if not in_place:
            build_data["force_include"].update({str(path): f"native/{path.name}" for path in made})
            build_data["pure_python"] = False
            build_data["infer_tag"] = True


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"ledgermq_build_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
