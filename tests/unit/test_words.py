"""Words that the pages do not use: each has a plainer one that names its subject and can be searched for.

The list grows by words whose number has become 0; a later list may hold the code to them, too.
"""

import re
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
PRINTED = {"scenarios.md", "mutants.md"}
"""Pages that are printed from catalogues of the tests."""
PAGES = [
    *ROOT.glob("*.md"),
    *(page for page in ROOT.glob("docs/**/*.md") if page.name not in PRINTED),
    *ROOT.glob("examples/*.md"),
]


@pytest.mark.parametrize("word", PLAINER)
def test_pages_use_the_plainer_word(word: str) -> None:
    pattern = re.compile(rf"\b{word}\b", re.IGNORECASE)
    found = [
        f"{page.relative_to(ROOT)}:{number}: {word}: {PLAINER[word]}"
        for page in PAGES
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1)
        if pattern.search(line)
    ]
    assert found == []
