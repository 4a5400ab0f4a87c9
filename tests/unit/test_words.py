"""Words that neither the pages nor the code use: each has a plainer one that names its subject.

In the code docstrings, comments and printed texts are checked alike. The list grows by words whose number has
become 0.
"""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLAINER = {
    "anew": "again",
    "whoever": "the node, client or process that is meant",
    "nobody": "no node, no client, no one",
    "somebody": "a node, a client, an operator",
    "thereof": "of it",
    "whither": "to which",
    "thrice": "three times",
}
"""Nowhere, the tests' own tools included."""
PLAINER_FOR_READERS = PLAINER | {
    "told": "sent, reported, notified",
    "anybody": "any client, any node",
    "everybody": "every client, every node",
}
PLAINER_PAGES = PLAINER_FOR_READERS | {
    "tells": "reports, describes, distinguishes",
    "wants": "needs, requires",
    "comes to the same": "has the same effect",
    "says otherwise": "another value is set",
}
PLAINER_NAMES = {
    "complain": "log_closed, warn",
    "distrust": "invalidate",
    "give_again": "redeliver_from",
    "hold_back": "suspend_writes",
    "is_undisputed": "has_lease",
    "judge_stop": "check_torn_tail",
    "LOOK_INTERVAL_S": "POLL_INTERVAL_S",
    "own_words": "size_and_position",
}
"""Names of the code that did not say what they name."""
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")]
TOOLS = [
    path
    for folder in ("support", "chaos", "node_simulation", "mutants")
    for path in sorted((ROOT / "tests" / folder).rglob("*"))
    if path.suffix in {".py", ".toml"}
]
"""The tests' own tools and scenarios, which strangers read too."""
PACKAGES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["root_packages"]
CODE = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
CODE += [path for path in sorted((ROOT / "admin_api/static").rglob("*.js")) if "vendor" not in path.parts]


def uses(word: str, paths: list[Path]) -> list[str]:
    """Each line of the files that has the word, with its place and the plainer word."""
    pattern = re.compile(rf"\b{word}\b", re.IGNORECASE)
    return [
        f"{path.relative_to(ROOT)}:{number}: {word}: {(PLAINER_PAGES | PLAINER_NAMES)[word]}"
        for path in paths
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if pattern.search(line)
    ]


@pytest.mark.parametrize("word", PLAINER_PAGES)
def test_pages_use_the_plainer_word(word: str) -> None:
    assert uses(word, PAGES) == []


@pytest.mark.parametrize("word", PLAINER)
def test_tools_of_the_tests_use_the_plainer_word(word: str) -> None:
    assert uses(word, TOOLS) == []


@pytest.mark.parametrize("word", PLAINER_FOR_READERS | PLAINER_NAMES)
def test_code_uses_the_plainer_word(word: str) -> None:
    assert uses(word, CODE) == []
