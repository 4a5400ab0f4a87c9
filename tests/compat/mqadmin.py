"""RocketMQ's own mqadmin (rocketmq-tools), its commands run one after another in one process."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO

from tests.integration.client_runs import CACHE, JAVAC, QUICK_JVM, ROOT, need

VERSION = "5.5.0"
JARS = CACHE / f"java/tools-{VERSION}"
CLASSES = CACHE / f"java/tools-{VERSION}-classes"
SOURCE = ROOT / "tests/integration/java/tools/RunCommands.java"
COMMAND_LIMIT_MS = 20_000
ERROR_TEXT = re.compile(
    r"Exception: |^\tat |command failed|not support|\b[Ff]ailed\b|\b[Ee]rror\b|\bERROR\b", re.MULTILINE
)
"""Headings like `exceptionDesc` and `failCount` are no errors."""


def compile_runner() -> None:
    """Compile what runs the commands; skip where there is no Java, or the jars are not in .cache."""
    is_there = JARS.is_dir() and shutil.which("java") is not None and shutil.which("javac") is not None
    need("java", is_there, "it needs a JDK of 17 or newer and Maven; scripts/test then puts it in .cache")
    CLASSES.mkdir(parents=True, exist_ok=True)
    target = CLASSES / "RunCommands.class"
    if not target.exists() or target.stat().st_mtime < SOURCE.stat().st_mtime:
        command = [*JAVAC, "-d", str(CLASSES), "-cp", f"{JARS}/*", str(SOURCE)]
        subprocess.run(command, check=True, timeout=120)


class MqAdmin:
    """The process. `folder` is where it runs: some commands write files there. `signs_as`: a user and its
    password, in the file where mqadmin looks for them.
    """

    def __init__(self, namesrv: str, folder: Path, signs_as: tuple[str, str] | None = None) -> None:
        self.namesrv = namesrv
        self.folder = folder
        self._begun: deque[tuple[str, Callable[[str], None]]] = deque()
        self._log = (folder / "mqadmin.log").open("wb")
        java = ["java", "-Xmx256m", *QUICK_JVM, "-Dfile.encoding=UTF-8", f"-Duser.home={folder}"]
        if signs_as is not None:
            java.append(f"-Drocketmq.home.dir={folder}")
            (folder / "conf").mkdir()
            account = "accessKey: {}\nsecretKey: {}\n".format(*signs_as)
            (folder / "conf/tools.yml").write_text(account, encoding="utf-8")
        self._process = subprocess.Popen(
            [*java, "-cp", f"{CLASSES}:{JARS}/*", "RunCommands", namesrv, str(COMMAND_LIMIT_MS)],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )

    def begin(self, sink: Callable[[str], None], *words: str) -> None:
        """Have a command run after those before it; `sink` gets what it printed by the time `finish` returns.

        Commands that are begun together save time: each waits up to 3 s at its end for one of its threads.
        """
        named = words if words[0].startswith("@") else (*words, "-n", self.namesrv)
        stdin, _ = self._pipes()
        stdin.write(b" ".join(base64.b64encode(word.encode()) for word in named) + b"\n")
        stdin.flush()
        self._begun.append((words[0], sink))

    def finish(self) -> None:
        """Wait for all that was begun."""
        _, stdout = self._pipes()
        while self._begun:
            name, sink = self._begun.popleft()
            answer = stdout.readline()
            if not answer:
                said = (self.folder / "mqadmin.log").read_text(encoding="utf-8", errors="replace")
                raise AssertionError(f"the process ended in {name}:\n{said[-2000:]}")
            sink(base64.b64decode(answer).decode())

    def run(self, *words: str) -> str:
        """What the command printed, whatever that is."""
        printed: list[str] = []
        self.begin(printed.append, *words)
        self.finish()
        return printed[0]

    def stop(self) -> None:
        """End the process by closing its input; kill it if that does not help."""
        stdin, stdout = self._pipes()
        stdin.close()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        stdout.close()
        self._log.close()

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        assert self._process.stdin is not None, "stdin is a pipe"
        assert self._process.stdout is not None, "stdout is a pipe"
        return self._process.stdin, self._process.stdout
