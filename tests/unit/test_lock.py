"""requirements-dev.txt has a version of everything that pyproject.toml asks for; `scripts/lock` writes it."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def wanted() -> set[str]:
    """The packages of the project, its extras and its tests, without the project itself."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = data["project"]
    lines = [*data["build-system"]["requires"], *project["dependencies"], *data["dependency-groups"]["test"]]
    for extra in project["optional-dependencies"].values():
        lines += extra
    return {name_of(line) for line in lines} - {"ledgermq"}


def name_of(line: str) -> str:
    """The package of a requirement, in the spelling of package indexes (PEP 503)."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=!~; ]", line, maxsplit=1)[0]).lower()


def locked() -> set[str]:
    lines = (ROOT / "requirements-dev.txt").read_text().splitlines()
    return {name_of(line) for line in lines if re.match(r"[A-Za-z0-9]", line)}


def test_every_dependency_is_locked() -> None:
    assert wanted() - locked() == set()
