"""Every `ledgermq` command that a page shows is there, with the options it shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from ledgermq.app import app

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")])
FENCED = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^    (\S.*)$", re.MULTILINE)
INLINE = re.compile(r"`(ledgermq [^`\n]+)`")
COMMAND = re.compile(r"(?:^|[|;&(] *|\.venv/bin/)ledgermq (\w[^|;&)#>\n]*)", re.MULTILINE)
ANY = re.compile(r"n\d|[A-Z]+")
"""`ledgermq node n1` starts this node, and words in capitals stand for others."""
SPARK_QUICKSTART = re.compile(r"## Quickstart.*?(```python\n.*?^```)", re.MULTILINE | re.DOTALL)


def shown(text: str) -> Iterator[list[str]]:
    """The words behind `ledgermq` of each command in the page's code."""
    code = [*FENCED.findall(text), *INDENTED.findall(FENCED.sub("", text)), *INLINE.findall(text)]
    for piece in code:
        for words in COMMAND.findall(piece):
            yield [word.strip("[]") for word in words.split("  ")[0].split()]


def wrong(words: list[str]) -> str | None:
    """What is not there, None when all is. COMMAND stands for any."""
    command: Any = get_command(app)
    context: Any = command.make_context("ledgermq", [], resilient_parsing=True)
    while words and hasattr(command, "get_command"):
        found = command.get_command(context, words[0])
        if found is None:
            return None if ANY.fullmatch(words[0]) else words[0]
        command, words = found, words[1:]
        context = command.make_context(command.name, [], parent=context, resilient_parsing=True)
    known = {name for parameter in command.params for name in [*parameter.opts, *parameter.secondary_opts]}
    known |= {"--help"}
    strange = [word for word in words if word.startswith("--") and word.partition("=")[0] not in known]
    return ", ".join(strange) or None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_options_are_there(page: Path) -> None:
    commands = list(shown(page.read_text(encoding="utf-8")))
    found = {" ".join(words): wrong(list(words)) for words in commands if not set("…|") & set("".join(words))}
    assert {command: name for command, name in found.items() if name} == {}


def test_commands_are_found_and_a_wrong_one_is_noticed() -> None:
    count = sum(len(list(shown(page.read_text(encoding="utf-8")))) for page in PAGES)
    assert count > 60
    assert wrong(["status", "--jsom"]) == "--jsom"
    assert wrong(["topic", "lst"]) == "lst"
    assert wrong(["topic", "edit", "Orders", "--queues", "8"]) is None


def test_front_page_shows_the_quickstart_of_the_spark_page() -> None:
    """Whose examples are run by tests/spark/test_spark_page.py."""
    found = SPARK_QUICKSTART.search((ROOT / "docs" / "spark.md").read_text(encoding="utf-8"))
    assert found is not None
    assert found.group(1) in (ROOT / "README.md").read_text(encoding="utf-8")
