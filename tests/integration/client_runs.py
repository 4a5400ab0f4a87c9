"""Runs a driver program of a stock client in a process of its own and reads its report."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.children import ending_with_parent

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"
PYTHON_CLIENT = CACHE / "rocketmq-client-python"
JAVA_SOURCES = ROOT / "tests/integration/java/src"
JAVA_GRPC_SOURCES = ROOT / "tests/integration/java/grpc/src"
JAVA_GRPC = "grpc-5.2.0"
GO_CLIENT = CACHE / "go-client"
GO_GRPC = CACHE / "go-grpc-client"
NODE_GRPC = CACHE / "grpc-node"
RUST_GRPC = CACHE / "grpc-rust" / "release" / "grpc-client"
_UNVERIFIED = ("-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote")
QUICK_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *_UNVERIFIED)
"""A test ends before the second compiler pays, and checks no released jar: half the CPU time of a start."""
JAVAC = ("javac", *(f"-J{option}" for option in QUICK_JVM), "-encoding", "UTF-8")
Report = list[dict[str, Any]]


def need(name: str, is_there: bool, remedy: str) -> None:
    """Skip the test when the client `name` is not installed; fail it when scripts/test said that it is."""
    if is_there:
        return
    reason = f"the {name} client is not installed: {remedy}"
    if name in os.environ.get("LEDGERMQ_REQUIRE_CLIENTS", "").split(","):
        pytest.fail(reason)
    pytest.skip(reason)


@dataclass(frozen=True, slots=True)
class Driver:
    """A command that drives a client; options are appended to it in the client's own style."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path

    def start(self, arguments: Sequence[str], out: Path) -> subprocess.Popen[bytes]:
        """Start the driver. The caller waits for it by `finish`, or ends it."""
        log = out.with_suffix(".log").open("wb")
        with log:
            return subprocess.Popen(
                ending_with_parent([*self.command, *arguments]),
                cwd=ROOT,
                env={**os.environ, **self.environment, "HOME": str(self.folder)},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def run(self, arguments: Sequence[str], out: Path, limit_s: float = 120.0) -> Report:
        """Run the driver to its end and return its report; a failed driver fails the test with its output."""
        return finish(self.start(arguments, out), out, limit_s)


def finish(process: subprocess.Popen[bytes], out: Path, limit_s: float = 120.0) -> Report:
    """Wait for a started driver and return the report it wrote to `out`."""
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        code = -9
    output = out.with_suffix(".log").read_text(encoding="utf-8", errors="replace")
    assert code == 0, f"the driver ended with {code}:\n{output[-4000:]}"
    return read_report(out)


def read_report(out: Path) -> Report:
    """The whole lines of a report; the driver may still be writing the last one, or not have begun."""
    if not out.exists():
        return []
    lines = out.read_bytes().split(b"\n")[:-1]
    return [json.loads(line) for line in lines]


def python_driver(folder: Path, program: str = "python_client") -> Driver:
    """A driver of rocketmq-client-python 2.0.0."""
    need("python", (PYTHON_CLIENT / ".installed").exists(), "run scripts/test, which puts it in .cache")
    environment = {
        "PYTHONPATH": os.pathsep.join([str(PYTHON_CLIENT), str(ROOT)]),
        "ROCKETMQ_CLIENT_LOG_DIR": str(folder),
    }
    return Driver((sys.executable, "-m", f"tests.integration.drivers.{program}"), environment, folder)


def grpc_python_driver(folder: Path) -> Driver:
    """The driver of rocketmq-python-client, which has an environment of its own."""
    python = CACHE / "grpc-python" / "bin" / "python"
    need("grpc-python", python.exists(), "run scripts/setup, which puts it in .cache")
    program = ROOT / "tests/integration/drivers/grpc_client.py"
    return Driver((str(python), str(program)), {}, folder)


def java_driver(version: str, folder: Path) -> Driver:
    """The driver of the Java client `version`, compiled against that version's jars."""
    return _java_driver(version, JAVA_SOURCES, "Driver", folder)


def grpc_java_driver(folder: Path) -> Driver:
    """The driver of rocketmq-client-java, which speaks TLS unless it is given another choice."""
    return _java_driver(JAVA_GRPC, JAVA_GRPC_SOURCES, "GrpcDriver", folder)


def _java_driver(version: str, source_folder: Path, program: str, folder: Path) -> Driver:
    jars = CACHE / "java" / version
    is_there = jars.is_dir() and shutil.which("java") is not None and shutil.which("javac") is not None
    need("java", is_there, "it needs a JDK of 17 or newer and Maven; scripts/test then puts it in .cache")
    sources = sorted(source_folder.glob("*.java"))
    classes = _compiled(jars, sources, CACHE / "java" / f"{version}-classes")
    command = ("java", "-Xmx256m", *QUICK_JVM, "-Dfile.encoding=UTF-8", f"-Duser.home={folder}")
    return Driver((*command, "-cp", f"{classes}:{jars}/*", program), {}, folder)


def go_driver(folder: Path) -> Driver:
    """The driver of rocketmq-client-go v2.1.2."""
    need("go", GO_CLIENT.exists(), "it needs Go; scripts/test then builds it into .cache")
    return Driver((str(GO_CLIENT),), {}, folder)


def grpc_go_driver(folder: Path) -> Driver:
    """The driver of rocketmq-clients/golang v5, which speaks TLS."""
    need("grpc-go", GO_GRPC.exists(), "it needs Go; scripts/setup then builds it into .cache")
    return Driver((str(GO_GRPC),), {"rocketmq.client.logRoot": str(folder)}, folder)


def grpc_node_driver(folder: Path) -> Driver:
    """The driver of rocketmq-client-nodejs, which speaks plain text."""
    is_there = shutil.which("node") is not None and (NODE_GRPC / "node_modules").is_dir()
    need("grpc-node", is_there, "it needs Node.js; `scripts/setup node` then puts it in .cache")
    program = ROOT / "tests/integration/node/driver.js"
    return Driver(("node", str(program)), {"NODE_PATH": str(NODE_GRPC / "node_modules")}, folder)


def grpc_rust_driver(folder: Path) -> Driver:
    """The driver of the crate rocketmq, which speaks plain text."""
    need("grpc-rust", RUST_GRPC.exists(), "it needs Rust; `scripts/setup rust` then builds it into .cache")
    return Driver((str(RUST_GRPC),), {}, folder)


def _compiled(jars: Path, sources: Sequence[Path], folder: Path) -> Path:
    """The classes of just these sources, compiled unless they are there; other runs may do the same now."""
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    classes = folder / digest[:16]
    if not classes.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as made:
            options = ["-d", f"{made}/classes", "-cp", f"{jars}/*"]
            subprocess.run([*JAVAC, *options, *map(str, sources)], check=True, timeout=120)
            with suppress(OSError):  # another run was first
                Path(made, "classes").rename(classes)
    return classes
