"""How trials are shown: a table for a terminal, and one for a page."""

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from tests.mutants.mutant import Case, Mutant
from tests.mutants.trial import Verdict

AREA_TITLES = {
    "replication": "Commit, acknowledgement, comparing logs",
    "elections": "Votes, terms, leadership",
    "members": "Changes of the members",
    "storage": "The disk, and starting from it",
    "service": "The driver, and what clients see",
}

HEAD = """\
# Mutants

Known mistakes, planted one at a time in a copy of the source, and what noticed each: the seed of a
simulated world, or a test. [Testing](testing.md) says how, and how to repeat one. This page is what
`scripts/mutants --markdown > docs/mutants.md` prints; a test holds it to the catalogue.
"""


def caught_by(verdict: Verdict) -> str:
    """The seed or test that noticed; a test without its folder."""
    if verdict.caught_by is None:
        return f"nothing: {verdict.words}"
    if isinstance(verdict.mutant.catcher, Case):
        return verdict.caught_by.rpartition("/")[2]
    return verdict.caught_by


def table(verdicts: Iterable[Verdict]) -> Table:
    """One row for each trial."""
    found = Table(title="Mutants", title_justify="left", show_lines=False, expand=True)
    found.add_column("mutant", no_wrap=True)
    found.add_column("what it breaks", ratio=3)
    found.add_column("caught by", ratio=3, overflow="fold")
    found.add_column("s", justify="right")
    for verdict in verdicts:
        style = "" if verdict.caught_by else "bold red"
        row = (verdict.mutant.name, verdict.mutant.mistake, caught_by(verdict), f"{verdict.duration_s:.1f}")
        found.add_row(*map(Text, row), style=style)
    return found


def markdown(verdicts: Sequence[Verdict]) -> str:
    """A page with a table for each area."""
    lines = [HEAD]
    for area, title in AREA_TITLES.items():
        rows = [verdict for verdict in verdicts if verdict.mutant.area == area]
        if not rows:
            continue
        lines += [f"**{title}**", "", "| mutant | what it breaks | known from | caught by |"]
        lines.append("|---|---|---|---|")
        lines += [_markdown_row(verdict) for verdict in rows]
        lines.append("")
    lines.append(summary(verdicts))
    return "\n".join(lines)


def _markdown_row(verdict: Verdict) -> str:
    mutant: Mutant = verdict.mutant
    cells = (f"`{mutant.name}`", mutant.mistake, mutant.source, f"`{caught_by(verdict)}`")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def summary(verdicts: Sequence[Verdict]) -> str:
    """The last line."""
    caught = sum(verdict.caught_by is not None for verdict in verdicts)
    return f"caught {caught} of {len(verdicts)}"
