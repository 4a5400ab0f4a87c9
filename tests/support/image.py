"""The image of docker/Dockerfile, built without a daemon and without pulling anything: by buildah, over a
base of this machine's own Debian packages. And commands run in it as in a container: a read-only root, /data
to write in, the user of the image, no capabilities; the network is this machine's.

`python -m tests.support.image` builds it into .cache/image, unless it is there already:

    root/         the whole file system
    config.json   what the image says of itself: user, environment, command
    made-of       a hash of the sources, written last

The base has what `python:3.13-slim` brings (Python and its venv module); the compiler is lent by this machine
while the image is built. pip takes packages from where this machine's pip does.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / ".cache" / "image"
DOCKERFILE: Final = ROOT / "docker" / "Dockerfile"
DPKG_STATUS: Final = Path("/var/lib/dpkg/status")
BASE_PACKAGES: Final = ("python3-venv", "passwd")
COMPILER_PACKAGES: Final = ("gcc", "python3-dev")
COMMANDS: Final = ("buildah", "dpkg-query", "unshare", "setpriv", "chroot")
MERGED: Final = ("bin", "sbin", "lib", "lib64")
"""Links to the folders of the same names in /usr."""
LENT: Final = ("/usr/bin", "/usr/lib", "/usr/include")
"""Of this machine, for the compiler. Not /usr/local: another Python may be there."""
LEFT_OUT: Final = tuple(f"/usr/share/{name}/" for name in ("doc", "info", "lintian", "locale", "man"))
SPACES: Final = ("--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child")
"""What a container has for itself. The network is shared."""
LIMIT_S: Final = 600.0
_CONTAINER: Final = """
set -e
mount --bind "$1" "$1"; mount -o remount,bind,ro "$1"
mount --bind "$2" "$1/data"; mount -t proc proc "$1/proc"; mount -t tmpfs tmpfs "$1/dev"
for name in null zero random urandom; do touch "$1/dev/$name"; mount --bind "/dev/$name" "$1/dev/$name"; done
mkdir "$1/dev/shm"; mount -t tmpfs tmpfs "$1/dev/shm"
root=$1; shift 2
exec chroot "$root" /usr/bin/setpriv --pdeathsig KILL "$@"
"""


class ImageError(Exception):
    """The image cannot be built; the text says why."""


def missing() -> str | None:
    """What this machine lacks to build and run the image; None: nothing."""
    absent = [name for name in COMMANDS if shutil.which(name) is None]
    if absent or not DPKG_STATUS.exists():
        return f"there is no {', '.join(absent or ['dpkg'])}"
    if os.getuid() != 0:
        return "only root can mount its file systems"
    there = _paragraphs()
    absent = [name for name in (*BASE_PACKAGES, *COMPILER_PACKAGES) if name not in there]
    if absent:
        return f"the Debian packages {', '.join(absent)} are not installed"
    tried = subprocess.run(["unshare", *SPACES, "true"], capture_output=True, timeout=LIMIT_S, check=False)
    return "processes may have no mounts of their own here" if tried.returncode else None


@dataclass(frozen=True, slots=True)
class Image:
    """An unpacked image."""

    root: Path
    config: Mapping[str, Any]

    def command(self, words: Sequence[str], data: Path) -> list[str]:
        """Runs the words in a container of its own, in which they are process 1, with this folder at /data.
        The container ends with this process; signals are for its first child.
        """
        user = self.config["User"]
        identity = ("--reuid", user, "--regid", user, "--clear-groups")
        rights = (*identity, "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", "--")
        inside = ("/usr/bin/env", "-i", "-C", self.config["WorkingDir"], *self.config["Env"], *words)
        outside = ("setpriv", "--pdeathsig", "KILL", "--", "unshare", *SPACES)
        return [*outside, "sh", "-c", _CONTAINER, "sh", str(self.root), str(data), *rights, *inside]


def build(folder: Path = FOLDER) -> Image:
    """The image of the sources as they are, from the folder if it is there. Raises ImageError."""
    made_of = _made_of()
    mark = folder / "made-of"
    if not mark.exists() or mark.read_text(encoding="utf-8") != made_of:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with tempfile.TemporaryDirectory(dir=folder) as work:
            config = _build(Path(work), folder / "root")
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        mark.write_text(made_of, encoding="utf-8")
    return Image(folder / "root", json.loads((folder / "config.json").read_text(encoding="utf-8")))


def _made_of() -> str:
    """A hash of all that COPY takes, and of what it is built with."""
    copied = re.findall(r"^COPY (?!--)(.+) \S+$", DOCKERFILE.read_text(encoding="utf-8"), re.M)
    hashed = hashlib.sha256(Path(__file__).read_bytes() + DOCKERFILE.read_bytes())
    for name in sorted(name for line in copied for name in line.split()):
        whole = ROOT / name
        files = sorted(whole.rglob("*")) if whole.is_dir() else [whole]
        for path in files:
            if path.is_file() and path.suffix not in (".pyc", ".so") and "_pb2" not in path.name:
                hashed.update(f"{path.relative_to(ROOT)} {path.stat().st_size}\n".encode())
                hashed.update(path.read_bytes())
    return hashed.hexdigest()


def _build(work: Path, root: Path) -> Mapping[str, Any]:
    """Builds it in the first folder, leaves its files in the second one, and returns its configuration."""
    buildah = ["buildah", "--root", str(work / "store"), "--runroot", str(work / "run")]
    buildah += ["--storage-driver", "vfs"]
    base = work / "base"
    _make_base(base)
    container = _run([*buildah, "from", "scratch"])
    _run([*buildah, "copy", "--quiet", container, str(base), "/"])
    _run([*buildah, "commit", "--quiet", container, "base"])
    ignored = f"{DOCKERFILE}.dockerignore"
    options = ["--isolation", "chroot", "--pull-never", "--ignorefile", ignored, "--file", str(DOCKERFILE)]
    lent = [*((path, path) for path in LENT), *_pip_files(work)]
    options += [word for here, there in lent for word in ("--volume", f"{here}:{there}:ro")]
    _run([*buildah, "bud", *options, "--build-arg", "BASE=localhost/base", "--tag", "ledgermq", str(ROOT)])
    container = _run([*buildah, "from", "--pull-never", "localhost/ledgermq"])
    Path(_run([*buildah, "mount", container])).rename(root)
    found = json.loads(_run([*buildah, "inspect", "--type", "image", "localhost/ledgermq"]))
    return dict(found["OCIv1"]["config"])


def _make_base(base: Path) -> None:
    """The files of Debian's essential packages and of BASE_PACKAGES, as this machine has them."""
    packages = _with_dependencies(BASE_PACKAGES)
    for name in MERGED:
        (base / "usr" / name).mkdir(parents=True)
        (base / name).symlink_to(f"usr/{name}")
    for line in _run(["dpkg-query", "--listfiles", *packages]).splitlines():
        if line.startswith("/") and not line.startswith(LEFT_OUT):
            _copy(Path(line), base / line[1:])
    for name in ("passwd", "group"):
        shutil.copy(base / f"usr/share/base-passwd/{name}.master", base / "etc" / name)
    status = base / "var/lib/dpkg/status"
    status.write_text("\n\n".join(packages.values()) + "\n", encoding="utf-8")
    _run(["ldconfig", "-r", str(base)])


def _copy(source: Path, target: Path) -> None:
    if source.is_dir() and not source.is_symlink():
        target.mkdir(parents=True, exist_ok=True)
        shutil.copystat(source, target)
    elif os.path.lexists(target):
        return
    elif source.is_symlink():
        target.symlink_to(source.readlink())
    elif source.is_file():
        shutil.copy2(source, target)
        for compiled in (
            source.parent.glob(f"__pycache__/{source.stem}.*.pyc") if source.suffix == ".py" else ()
        ):
            # Made when a package is installed, and in no package's list.
            (target.parent / "__pycache__").mkdir(exist_ok=True)
            shutil.copy2(compiled, target.parent / "__pycache__")


def _paragraphs() -> dict[str, str]:
    """Of dpkg's status file, by the names of the packages that are installed."""
    found = re.split(r"\n\n+", DPKG_STATUS.read_text(encoding="utf-8").strip())
    return {_field(text, "Package"): text for text in found if _field(text, "Status").endswith(" installed")}


def _field(paragraph: str, name: str) -> str:
    found = re.search(rf"^{name}: (.*)$", paragraph, re.M)
    return found[1] if found else ""


def _names(field: str) -> Iterator[list[str]]:
    """Of `python3:any (>= 3.11), a | b`: the names of each alternative."""
    for part in filter(None, field.split(",")):
        yield [alternative.split()[0].partition(":")[0] for alternative in part.split("|")]


def _with_dependencies(names: Iterable[str]) -> dict[str, str]:
    """Paragraphs of these packages, of the essential ones, and of all that they depend on, by name."""
    there = _paragraphs()
    providers = {
        provided: name for name, text in there.items() for (provided,) in _names(_field(text, "Provides"))
    } | {name: name for name in there}
    waiting = [*names, *(name for name, text in there.items() if _field(text, "Essential") == "yes")]
    found: dict[str, str] = {}
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found[name] = there[name]
        for field in ("Depends", "Pre-Depends"):
            for alternatives in _names(_field(there[name], field)):
                waiting += [providers[each] for each in alternatives if each in providers][:1]
    return found


def _pip_files(work: Path) -> list[tuple[str, str]]:
    """What the image's build sees of this machine: the settings of its pip, and the files that they name."""
    lines = _run([sys.executable, "-m", "pip", "config", "list"]).splitlines()
    settings = {}
    for line in lines:
        key, _, value = line.partition("=")
        settings[key.rpartition(".")[2]] = str(ast.literal_eval(value))
    text = "".join(
        f"{key} = {value}\n".replace("\n", "\n ", value.count("\n")) for key, value in settings.items()
    )
    (work / "pip.conf").write_text(f"[global]\n{text}", encoding="utf-8")
    named = {value for value in settings.values() if value.startswith("/") and Path(value).exists()}
    return [(str(work / "pip.conf"), "/etc/pip.conf"), *((path, path) for path in sorted(named))]


def _run(command: Sequence[str]) -> str:
    """What it prints. Raises ImageError with its last words."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ImageError(f"{command[0]}: {error}") from error
    if done.returncode:
        raise ImageError(f"{' '.join(command)[:2000]}: {(done.stdout + done.stderr).strip()[-4000:]}")
    return done.stdout.strip()


def main(arguments: Sequence[str]) -> int:
    """Build it; 1 when it cannot be built, after the reason. With --lacking: 0 when this machine lacks
    something, which is printed.
    """
    if arguments == ["--lacking"]:
        lacking = missing()
        sys.stdout.write(f"{lacking}\n" if lacking else "")
        return 1 if lacking is None else 0
    try:
        build()
    except ImageError as error:
        sys.stderr.write(f"the image cannot be built: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
