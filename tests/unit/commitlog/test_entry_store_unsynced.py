"""An entry store whose writes are not synced one by one: `durability=replicated`.

A power failure may take any of them back, but never what the checkpoint has promised.
"""

import contextlib
import random

import pytest

from tests.support.log_entries import Stored, open_small, read_all, write_all
from tests.support.memory_fs import MemoryFs, PowerLossError


class Life:
    """A store under random operations. `kept` of its entries are promised."""

    def __init__(self, rng: random.Random, fs: MemoryFs) -> None:
        self.rng = rng
        self.store = open_small(fs)
        self.entries = read_all(self.store)
        self.kept = 0
        self.term = 1 + max((entry.term for entry in self.entries), default=0)

    def step(self) -> None:
        rng, store = self.rng, self.store
        choice = rng.random()
        if choice < 0.7:
            bodies = [rng.randbytes(rng.randrange(300)) for _ in range(rng.randrange(1, 5))]
            self.entries += [Stored(self.term, body) for body in bodies]
            store.append_bodies(store.end_index + 1, self.term, bodies)
        elif choice < 0.8 and self.entries:
            left = rng.randrange(len(self.entries))
            self.kept = min(self.kept, left)
            del self.entries[left:]
            store.truncate_from(left)
            self.term += 1
        if choice < 0.9:
            write_all(store, sync=False)
        else:
            write_all(store, sync=False)
            store.save_checkpoint(store.end_index, store.end_index)
            self.kept = len(self.entries)


@pytest.mark.parametrize("seed", range(60))
def test_power_failure_takes_nothing_that_the_checkpoint_promised(seed: int) -> None:
    rng = random.Random(seed)
    fs = MemoryFs()
    for _ in range(4):
        life = Life(rng, fs)
        with contextlib.suppress(PowerLossError), fs.stopping_after(rng.randrange(150)):
            for _ in range(40):
                life.step()
        fs = fs.crash(rng)
        found = read_all(open_small(fs))
        assert found[: life.kept] == life.entries[: life.kept]
