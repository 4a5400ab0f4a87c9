"""What a broker for tests is made of before it runs: a folder, in memory where there is room for it, a plan
with free ports, and settings for data that no one keeps.
"""

import fcntl
import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from ledgermq.errors import UserError
from ledgermq.local.node_files import read_settings, write_node_files
from ledgermq.local.plan import ClusterPlan, Scalar, is_free, load_plan, require_free

MEMORY_FOLDER: Final = Path("/dev/shm")
HOME_PREFIX: Final = "ledgermq-testing-"
LOCK_NAME: Final = "in-use"
ABANDONED_S: Final = 60.0
MEMORY_BYTES_MIN: Final = 512 * 1024 * 1024
"""Containers often have 64 MiB there, which a test could fill."""
PORTS_FROM, PORTS_TO = 10_240, 20_900
"""Below the ports that systems give to outgoing connections, which could take one before a node listens."""
PORT_TRIES: Final = 200

SETTINGS: Final[Mapping[str, Scalar]] = {
    # The data of a test need not outlive the machine.
    "durability": "replicated",
    # Room is reserved for a whole file, and in memory that is memory.
    "mappedFileSizeCommitLog": 16 * 1024 * 1024,
    "mappedFileSizeForEntryIndex": 1024 * 1024,
    # The disk of a workstation or a build server may be nearly full with other data.
    "diskSpaceWarningLevelRatio": 99,
}
"""Where tests need something else than production; a test's own settings override them."""


@contextmanager
def home_at(path: Path | None) -> Iterator[Path]:
    """The folder itself, made if there is none; without one a folder that is removed at the end."""
    if path is not None:
        path.mkdir(parents=True, exist_ok=True)
        yield path.absolute()
        return
    folder = _memory_folder() or Path(tempfile.gettempdir())
    _remove_abandoned(folder)
    with (
        tempfile.TemporaryDirectory(prefix=HOME_PREFIX, dir=folder, ignore_cleanup_errors=True) as name,
        (Path(name) / LOCK_NAME).open("w") as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Path(name)


def _remove_abandoned(folder: Path) -> None:
    """Remove what tests that were killed have left: it is memory until the machine starts again."""
    for home in folder.glob(f"{HOME_PREFIX}*"):
        with suppress(OSError), (home / LOCK_NAME).open() as lock:
            # One that was made just now may not be locked yet; and nodes end a moment after their test.
            if time.time() - home.stat().st_mtime > ABANDONED_S:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(home, ignore_errors=True)


def _memory_folder() -> Path | None:
    """None: the system's folder for temporary files."""
    try:
        has_room = shutil.disk_usage(MEMORY_FOLDER).free >= MEMORY_BYTES_MIN
    except OSError:
        return None
    return MEMORY_FOLDER if has_room and os.access(MEMORY_FOLDER, os.W_OK | os.X_OK) else None


def plan_in(
    home: Path, nodes: int, settings: Mapping[str, Scalar] | None, own: Mapping[str, Scalar] | None = None
) -> ClusterPlan:
    """The plan of the folder, on the ports that it had before, or a new one. `own`: settings that a test
    cannot override. It is stored, with each node's configuration.

    Raises: UserError when a setting cannot be used, the folder has another number of nodes, or one of its
    ports is in use.
    """
    wanted = read_settings(None, [f"{key}={value}" for key, value in (settings or {}).items()])
    kept = load_plan(home)
    if kept is not None and kept.node_count != nodes:
        raise UserError(f"the cluster in {home} has {kept.node_count} nodes, not {nodes}; use another path.")
    if kept is None:
        plan = _free_plan(home, nodes)
    else:
        plan = kept
        require_free(plan.ports())
    plan = replace(plan, settings={**SETTINGS, **plan.settings, **wanted, **(own or {})})
    write_node_files(plan)
    plan.save()
    return plan


def _free_plan(home: Path, nodes: int) -> ClusterPlan:
    """Raises: UserError."""
    # Not the module's own numbers: a test may have seeded them, and workers of one run all alike.
    rng = random.Random()
    for _ in range(PORT_TRIES):
        first = rng.randrange(PORTS_FROM, PORTS_TO)
        plan = ClusterPlan(
            home, nodes, first, first + 1, admin_port=0, has_replication_tls=False, grpc_port=0
        )
        if all(map(is_free, plan.ports())):
            return plan
    raise UserError(f"no free ports were found between {PORTS_FROM} and {PORTS_TO}.")
