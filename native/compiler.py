"""Compiles the C modules. Needs a C compiler and Python's headers, nothing else.

Runs before anything is installed, so it imports the standard library only.
"""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parent
SOURCES: Final[Mapping[str, Sequence[str]]] = {
    "_log": (
        *("log.c", "records.c", "entries.c", "dispatch.c", "sequences.c", "queue_table.c"),
        *("crc32.c", "writer.c", "file_write.c", "direct_write.c", "frames.c", "keys.c", "rows.c"),
    ),
    "_remoting": (
        *("remoting.c", "remoting_heads.c", "remoting_frames.c"),
        *("remoting_sends.c", "remoting_messages.c", "remoting_answers.c"),
        *("remoting_pulls.c", "remoting_poll.c", "crc32.c", "hpack.c"),
    ),
}
"""The C files of each module. Headers are in the same folder."""
FLAGS: Final = (
    "-std=gnu11",
    "-O3",
    "-fPIC",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-fvisibility=hidden",
    "-Wall",
    "-pthread",
)
LIMIT_S: Final = 300.0


class CannotCompileError(Exception):
    """There is no compiler, there are no headers, or the compiler failed; the text has the reason."""


def compile_modules(target: Path, extra_flags: Sequence[str] = ()) -> list[Path]:
    """Compile every module into `target`; return the files. Raises CannotCompileError."""
    compiler = find_compiler()
    headers = Path(sysconfig.get_paths()["include"])
    if not (headers / "Python.h").is_file():
        raise CannotCompileError(f"{headers} has no Python.h (Debian and Ubuntu: apt install python3-dev)")
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    link = ["-bundle", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared"]
    made = []
    for name, sources in SOURCES.items():
        out = target / f"{name}{suffix}"
        unfinished = out.with_name(out.name + ".tmp")
        command = [*compiler, *FLAGS, *extra_flags, f"-I{headers}", *link, "-o", str(unfinished)]
        _run([*command, *(str(FOLDER / source) for source in sources)])
        unfinished.replace(out)
        made.append(out)
    return made


def find_compiler() -> list[str]:
    """The command of the C compiler; CC in the environment has precedence. Raises CannotCompileError."""
    if os.name != "posix":
        raise CannotCompileError(f"the modules are written for POSIX systems, not for {os.name}")
    wanted = os.environ.get("CC")
    if wanted:
        return shlex.split(wanted)
    for name in ("cc", "gcc", "clang"):
        path = shutil.which(name)
        if path is not None:
            return [path]
    raise CannotCompileError("no C compiler was found (Debian and Ubuntu: apt install gcc)")


def _run(command: Sequence[str]) -> None:
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotCompileError(str(error)) from error
    if result.returncode != 0:
        raise CannotCompileError(f"{shlex.join(command)}: {result.stderr.strip()}")
