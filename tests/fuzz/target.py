"""A decoder of bytes from outside, in the form that every kind of fuzzing here shares.

The modules of `tests/fuzz/targets` each hold a tuple `TARGETS`. Hypothesis runs all of them with every test
run (`test_targets.py`), and `scripts/fuzz` runs each for as long as it is told, guided by coverage.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.fuzz import targets

ERROR_CHARS_MAX = 400


@dataclass(frozen=True, slots=True)
class Target:
    """`check` reads the bytes: it returns for a value and for the typed error of the module, and anything it
    raises is a fault. What has been read is written and read again there, where the module can write.

    samples: valid bytes, from which mutations and the first corpus are made.
    """

    name: str
    check: Callable[[bytes], None]
    samples: tuple[bytes, ...]


def check_words(error: Exception) -> None:
    """What a peer sent must not fill the log by way of an error's text."""
    assert len(str(error)) < ERROR_CHARS_MAX, error


def load_targets() -> Mapping[str, Target]:
    """Every target by its name. Imports the decoders."""
    modules = [importlib.import_module(found.name) for found in _modules()]
    found = [target for module in modules for target in module.TARGETS]
    by_name = {target.name: target for target in found}
    assert len(by_name) == len(found), "two targets have one name"
    return by_name


def _modules() -> list[pkgutil.ModuleInfo]:
    return list(pkgutil.iter_modules(targets.__path__, targets.__name__ + "."))
