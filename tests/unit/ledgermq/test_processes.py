"""The processes of a local cluster as they begin."""

from __future__ import annotations

import gc
import runpy
import sys

import pytest


@pytest.mark.parametrize("package", ["admin_api", "broker"])
def test_garbage_is_collected_once_all_is_imported(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [package, "--help"])
    monkeypatch.delitem(sys.modules, f"{package}.__main__", raising=False)
    with pytest.raises(SystemExit):
        runpy.run_module(package, run_name="__main__")
    assert gc.isenabled()
