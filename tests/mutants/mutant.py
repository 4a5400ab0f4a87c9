"""What a mutant is: one known mistake as a change of the source text, and what must notice it.

The mutants stand in `catalogue/*.toml`:

    [[mutant]]
    name = "vote-forgotten"
    mistake = "What the code does wrong, as one sentence."
    source = "Where it is known from: the paper, the article, or the system that made it."
    world = "group"     # with `seed`, and `seeds_max` when it is not SEEDS_MAX: a simulated world notices
    seed = 27
    test = "…"          # or instead of those three: the pytest node id of a test that does

    [[mutant.edit]]     # once or more: `old` stands in `file` exactly once
    file = "dledger/core/node.py"
    old = 'self.voted_for = hard_state.voted_for'
    new = 'self.voted_for = None'
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CATALOGUE = Path(__file__).with_name("catalogue")
AREAS = ("replication", "elections", "members", "storage", "service")
"""The files of the catalogue, in the order in which they are shown."""
SEEDS_MAX = 150


@dataclass(frozen=True, slots=True)
class Edit:
    """Replaces `old`, which stands in `file` exactly once."""

    file: str
    """Relative to the root of the checkout."""
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Seeds:
    """A simulated world: the seed known to notice, and how many others may be tried when it does not."""

    world: str
    """A name of `tests.mutants.worlds`."""
    seed: int
    seeds_max: int = SEEDS_MAX


@dataclass(frozen=True, slots=True)
class Case:
    """One test, by its pytest node id; without brackets, each of its parameters may be the one to fail."""

    test: str


Catcher = Seeds | Case


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mistake that another system had, or that a change could introduce."""

    name: str
    area: str
    mistake: str
    source: str
    catcher: Catcher
    edits: tuple[Edit, ...]


def load_mutants() -> tuple[Mutant, ...]:
    """All of the catalogue. Raises ValueError for a name used twice, KeyError for a missing field."""
    found = [
        _mutant(area, fields)
        for area in AREAS
        for fields in tomllib.loads((CATALOGUE / f"{area}.toml").read_text(encoding="utf-8"))["mutant"]
    ]
    names = [mutant.name for mutant in found]
    if len(set(names)) < len(names):
        raise ValueError(f"a mutant is named twice in {sorted(names)}")
    return tuple(found)


def _mutant(area: str, fields: Mapping[str, Any]) -> Mutant:
    catcher: Catcher
    if "test" in fields:
        catcher = Case(fields["test"])
    else:
        catcher = Seeds(fields["world"], fields["seed"], fields.get("seeds_max", SEEDS_MAX))
    edits = tuple(Edit(edit["file"], edit["old"], edit["new"]) for edit in fields["edit"])
    return Mutant(fields["name"], area, fields["mistake"], fields["source"], catcher, edits)
