"""Disks that forget: bits turned over under a running node, files cut, deleted or wiped while it is down.

At most a minority of the disks is damaged at any time, or one of two: one counts as damaged until its node is
sound again and its disk holds everything that is committed.
"""

import random
from collections.abc import Callable, Collection
from pathlib import Path

from commitlog.dledger_commit_log import store_directory
from commitlog.segments import file_name
from dledger.core.types import NO_INDEX
from tests.node_simulation.invariants import Checker, engine_of
from tests.node_simulation.machine import Machine

KINDS = ("flip", "flip", "flip any", "cut", "delete log", "delete vote", "delete derived", "wipe")
DERIVED = ("index", "epochs", "snapshot", ".checkpoint")
EVIDENCE = ("checkpoint", "synced")
"""Whether a log was longer is known from these: a node may lose them or a part of its log, but not both."""


class Damage:
    """Does the damage, and knows who is damaged."""

    def __init__(self, rng: random.Random, nodes: dict[str, Machine], checker: Checker) -> None:
        self._rng = rng
        self._nodes = nodes
        self._checker = checker
        self._strangers = set(nodes)
        """Nodes not yet seen sound: a new group's member does not vote either until it has met all others."""

    def may_strike(self, machine: Machine, voters: Collection[str] | None = None) -> bool:
        """Whether the sound ones are a majority without this one, or the other one of two is sound: it has
        everything that was committed. Forgets who has healed. `voters`: all nodes unless they are given.
        """
        damaged = self._checker.damaged
        damaged &= self._nodes.keys()
        self._strangers &= self._nodes.keys()
        for name in sorted(damaged | self._strangers):
            if self._is_sound(self._nodes[name]):
                damaged.discard(name)
                self._strangers.discard(name)
        impaired = {name for name, node in self._nodes.items() if _is_impaired(node) or _may_not_read(node)}
        voting = len(self._nodes if voters is None else voters)
        damaged_max = 1 if voting == 2 else (voting - 1) // 2
        return len(damaged | impaired | self._strangers | {machine.name}) <= damaged_max

    def _is_sound(self, machine: Machine) -> bool:
        broker = None if machine.process is None else machine.process.broker
        if broker is None or _is_impaired(machine):
            return False
        return engine_of(broker).persisted_index >= self._checker.commit_index and (
            self._checker.missing(machine) == NO_INDEX
        )

    def flip_while_running(self, machine: Machine) -> None:
        """One bit of a committed entry, on the disk and in the page cache."""
        self._checker.damaged.add(machine.name)
        committed = self._checker.committed
        if not committed:
            return
        entry = self._rng.choice(committed)
        file_bytes = self._checker.disks.data_file_bytes
        at = entry.position + self._rng.randrange(len(entry.data))
        path = self._folder(machine) / "data" / file_name(at - at % file_bytes)
        if path in machine.fs.paths():
            machine.fs.flip(path, at % file_bytes, self._rng.randrange(8))

    def strike(self, machine: Machine, kind: str) -> None:
        """Of a machine whose process is down."""
        assert not machine.is_up, machine.name
        was_sound = machine.name not in self._checker.damaged
        self._checker.damaged.add(machine.name)
        self._checker.ever_damaged.add(machine.name)
        fs, rng = machine.fs, self._rng
        if kind == "flip any":
            paths = self._paths(machine, lambda path: len(fs.content(path)) > 0)
            if paths:
                path = rng.choice(paths)
                fs.flip(path, rng.randrange(len(fs.content(path))), rng.randrange(8))
        elif kind == "cut":
            paths = self._paths(machine, lambda path: path.parent.name == "data")
            if paths:
                path = rng.choice(paths)
                fs.cut(path, rng.randrange(len(fs.content(path)) + 1))
        elif kind == "delete log":
            self._delete(machine, lambda path: path.parent.name == "data", rng.random())
        elif kind == "delete vote":
            self._delete(machine, lambda path: path.name == "currterm", 1.0)
        elif kind == "delete derived":
            name = rng.choice(DERIVED + EVIDENCE if was_sound else DERIVED)
            self._delete(machine, lambda path: name in (path.name, path.parent.name), 1.0)
        elif kind == "wipe":
            self._delete(machine, lambda path: True, 1.0)
        else:
            raise AssertionError(kind)

    def _paths(self, machine: Machine, wanted: Callable[[Path], bool]) -> list[Path]:
        return [path for path in machine.fs.paths() if wanted(path)]

    def _delete(self, machine: Machine, wanted: Callable[[Path], bool], probability: float) -> None:
        for path in self._paths(machine, wanted):
            if self._rng.random() < probability:
                machine.fs.remove(path)

    def _folder(self, machine: Machine) -> Path:
        return store_directory(self._checker.disks.root, machine.name)


def _may_not_read(machine: Machine) -> bool:
    """What a node cannot read when it starts is lost to it, as if it were damaged."""
    return any("pread" in fault.operations for fault in machine.fs.faults)


def _is_impaired(machine: Machine) -> bool:
    """Whether its node runs and does not vote: it found damage, or a disk that failed once."""
    broker = None if machine.process is None else machine.process.broker
    return broker is not None and engine_of(broker).status().impairment is not None
