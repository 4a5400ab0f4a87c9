"""Runs targets guided by coverage: `python -m tests.fuzz [TARGET ...] [--seconds N]`; see `scripts/fuzz`.

Each target runs in a process of its own, which libFuzzer ends with its first failure. Its corpus grows in
`.cache/fuzz/<target>/corpus` from the target's samples; bytes that failed stay beside it.
"""

import argparse
import importlib
import logging
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.fuzz.mutations import TOKENS, WORDS

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "fuzz"
INPUT_BYTES_MAX = 4_096
MEMORY_MIB_MAX = 2_048
INPUT_SECONDS_MAX = 10
PACKAGES = ("broker", "commitlog", "dledger", "namesrv", "remoting")
_RATE = re.compile(r"#(\d+)\s+\w+.*?cov: (\d+) ft: (\d+) corp: (\d+)")


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0, or 1 when a target failed."""
    options = _parse(arguments)
    if options.inside:
        _fuzz(options.targets[0], options.seconds)
    if options.repeat is not None:
        _load()[options.targets[0]].check(options.repeat.read_bytes())
        return 0
    names = options.targets or sorted(_load())
    failed = [name for name in names if not _run(name, options.seconds)]
    return 1 if failed else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description="Fuzzing guided by coverage.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="names of targets (default: all)")
    parser.add_argument("--seconds", type=int, default=60, help="time for each (default %(default)s)")
    parser.add_argument("--repeat", type=Path, metavar="FILE", help="run one target on these bytes only")
    parser.add_argument("--list", action="store_true", help="name the targets and end")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(sorted(_load())))
        parser.exit()
    unknown = [name for name in options.targets if name not in _load()] if not options.inside else []
    if unknown:
        parser.error(f"no target is called {unknown[0]}; --list names them")
    if options.repeat is not None and len(options.targets) != 1:
        parser.error("--repeat needs the name of one target")
    return options


def _load() -> Any:
    return importlib.import_module("tests.fuzz.target").load_targets()


def _run(name: str, seconds: int) -> bool:
    """One target in its own process; says how it went in a line."""
    folder = CACHE / name
    log = folder / "log.txt"
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tests.fuzz", name, "--inside", "--seconds", str(seconds)]
    with log.open("wb") as output:
        code = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
    text = log.read_text(errors="replace")
    last = [match.groups() for match in _RATE.finditer(text)][-1:] or [("0", "0", "0", "0")]
    runs, coverage, features, corpus = last[0]
    print(f"{name}: {runs} runs, coverage {coverage}, {features} features, {corpus} inputs kept", flush=True)
    if code == 0:
        return True
    print(f"{name} failed; the whole output: {log}")
    for line in re.findall(r"^(?: === Uncaught.*|\w*(?:Error|Exception).*)$", text, re.MULTILINE)[:3]:
        print(f"  {line}")
    for path in re.findall(r"Test unit written to (\S+)", text):
        print(f"  to repeat it: scripts/fuzz {name} --repeat {os.path.relpath(path)}")
    return False


def _fuzz(name: str, seconds: int) -> None:
    """Never returns: libFuzzer ends the process."""
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=list(PACKAGES)):
        target = _load()[name]
    logging.disable(logging.CRITICAL)
    folder = CACHE / name
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, sample in enumerate(target.samples):
        (corpus / f"sample-{number}").write_bytes(sample)
    words = folder / "words"
    words.write_text("".join(_quoted(word) for word in sorted({*TOKENS, *WORDS})))
    options = [f"-max_total_time={seconds}", f"-max_len={INPUT_BYTES_MAX}", f"-timeout={INPUT_SECONDS_MAX}"]
    options += [f"-rss_limit_mb={MEMORY_MIB_MAX}", f"-artifact_prefix={folder}/", f"-dict={words}"]
    atheris.Setup(["fuzz", *options, str(corpus)], target.check)
    atheris.Fuzz()


def _quoted(word: bytes) -> str:
    return '"' + "".join(f"\\x{byte:02x}" for byte in word) + '"\n'


if __name__ == "__main__":
    sys.exit(main())
