"""The wheel, installed apart from the checkout: it has everything, and a cluster and its page run from it.

It is built as where there is no C compiler, so that what runs here is the pure Python that is left then; the
checkout's own modules are compiled.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from ledgermq.bill_of_materials import bill_of_wheel
from tests.integration.cluster import free_ports
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = {"__pycache__"}
COMPILED = ".so"
"""Made in place in a checkout; a wheel has its own, or none."""
LIMIT_S = 60
READY_LIMIT_S = 90.0
"""A first start writes the bytecode of everything."""
STOP_LIMIT_S = 20.0


def packages() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    names = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert isinstance(names, list)
    return names


def files_of(root: Path) -> set[str]:
    """What the packages below `root` consist of."""
    return {
        str(path.relative_to(root))
        for name in packages()
        for path in (root / name).rglob("*")
        if path.is_file() and not LEFT_OUT & set(path.parts) and COMPILED not in path.suffixes
    }


@dataclass(frozen=True, slots=True)
class Installed:
    """The folder the wheel was installed into, and one that is no checkout to run it in."""

    folder: Path
    outside: Path
    wheel: Path

    def environment(self) -> dict[str, str]:
        return os.environ | {"PYTHONPATH": str(self.folder)}

    def run(self, *arguments: str, stdin: str = "") -> str:
        """What `ledgermq` of the wheel prints."""
        done = subprocess.run(
            [self.folder / "bin" / "ledgermq", *arguments],
            cwd=self.outside,
            env=self.environment(),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    names = ("built", "installed", "outside", "temporary")
    built, folder, outside, temporary = (tmp_path_factory.mktemp(name) for name in names)
    no_compiler = os.environ | {"CC": str(outside / "no-compiler"), "TMPDIR": str(temporary)}
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)]
    subprocess.run(build, cwd=ROOT, env=no_compiler, check=True, capture_output=True, timeout=LIMIT_S)
    assert list(temporary.iterdir()) == [], "the build leaves nothing behind"
    (wheel,) = built.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-index"]
    pip += ["--no-deps", "--no-compile", "--target", str(folder), str(wheel)]
    subprocess.run(pip, cwd=outside, check=True, capture_output=True, timeout=LIMIT_S)
    return Installed(folder, outside, wheel)


def test_wheel_has_every_file_of_its_packages(installed: Installed) -> None:
    assert installed.wheel.name.endswith("-py3-none-any.whl"), "nothing is compiled in it"
    assert files_of(ROOT) - files_of(installed.folder) == set()
    assert "admin_api/static/index.html" in files_of(installed.folder)


def test_wheel_has_its_bill_of_materials(installed: Installed) -> None:
    (bill,) = installed.folder.glob("ledgermq-*.dist-info/sboms/*.json")
    assert bill.name == "ledgermq.cdx.json"
    assert bill.read_bytes() == bill_of_wheel(ROOT)


def test_every_package_of_the_checkout_is_in_the_wheel() -> None:
    found = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert found == set(packages())


@pytest.fixture
def up(installed: Installed) -> Iterator[dict[str, str]]:
    """One node and its admin service, started by the wheel: what READY says."""
    namesrv, broker, admin = free_ports(1)
    ports = [
        f"--namesrv-port={namesrv}",
        f"--broker-port={broker}",
        f"--admin-port={admin}",
        f"--grpc-port={admin + 1}",
    ]
    out = installed.outside / "up.out"
    with out.open("wb") as stdout, (installed.outside / "up.err").open("wb") as stderr:
        process = subprocess.Popen(
            [installed.folder / "bin" / "ledgermq", "up", "--data", "data", "--nodes", "1", *ports],
            cwd=installed.outside,
            env=installed.environment(),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
    try:

        def ready() -> str | None:
            assert process.poll() is None, (installed.outside / "up.err").read_text(encoding="utf-8")
            lines = out.read_text(encoding="utf-8").splitlines()
            return next((line for line in lines if line.startswith("READY ")), None)

        yield json.loads(wait_for("READY", ready, READY_LIMIT_S).removeprefix("READY "))
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_LIMIT_S) == 0


def test_cluster_and_page_run_from_the_wheel_without_a_compiler(
    installed: Installed, up: dict[str, str]
) -> None:
    assert "pure Python" in installed.run("version")
    installed.run("produce", "Wheel", "--namesrv", up["namesrv"], stdin="one\ntwo\n")
    taken = installed.run("consume", "Wheel", "--count", "2", "--namesrv", up["namesrv"])
    assert sorted(taken.split()) == ["one", "two"]
    vendored = ("uplot/uPlot.esm.js", "preact/preact.mjs", "preact/hooks.mjs", "htm/htm.mjs")
    for path in ("/", "/docs", "/static/app.js", *(f"/static/vendor/{name}" for name in vendored)):
        assert httpx.get(up["admin"] + path, timeout=10).status_code == 200, path
