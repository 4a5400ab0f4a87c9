"""Checks the checker: known mistakes are planted in a copy of the source, and each must be noticed.

A mutant that survives means that the tests no longer reach what they once reached. See docs/testing.md.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants.mutant import Case, Edit, Mutant, Seeds, load_mutants
from tests.mutants.planting import ROOT, EditError, edited_files, planted
from tests.mutants.report import caught_by, markdown, summary
from tests.mutants.trial import TrialError, Verdict, try_edits, try_mutant, try_nothing
from tests.mutants.worlds import WORLDS
from tests.support.long_runs import is_long_run
from tests.support.new_seeds import given_seed

MUTANTS = load_mutants()
MUTANTS_MIN = 80
SAMPLES = 20
SAMPLE = MUTANTS if is_long_run() else MUTANTS[given_seed() % SAMPLES :: SAMPLES]
"""Planted in this run: a twentieth of them, which ones the commit decides; in long runs all."""
QUORUM = "dledger/core/leadership.py"
QUORUM_TEST = Case("tests/unit/dledger/test_quorum.py::test_committable_index")


def by_name(mutant: Mutant) -> str:
    return mutant.name


# -- the catalogue -----------------------------------------------------------------------------------------


def test_catalogue_is_large_and_says_everything() -> None:
    assert len(MUTANTS) >= MUTANTS_MIN
    for mutant in MUTANTS:
        assert mutant.mistake.endswith("."), mutant.name
        assert mutant.source, mutant.name
        assert mutant.edits, mutant.name


@pytest.mark.parametrize("mutant", MUTANTS, ids=by_name)
def test_mutant_fits_the_source(mutant: Mutant) -> None:
    """Otherwise it must follow the source: its old text stands there once, and the new one compiles."""
    for file, text in edited_files(mutant.edits).items():
        assert text != (ROOT / file).read_text(encoding="utf-8")
    if isinstance(mutant.catcher, Seeds):
        assert mutant.catcher.world in WORLDS
    else:
        file, _, test = mutant.catcher.test.partition("::")
        assert f"def {test.partition('[')[0]}(" in (ROOT / file).read_text(encoding="utf-8")


# -- every mutant is noticed -------------------------------------------------------------------------------


def test_nothing_is_noticed_in_the_source_as_it_is() -> None:
    words = try_nothing(mutant.catcher for mutant in SAMPLE)
    assert words is None


@pytest.fixture(scope="module")
def trials(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Verdict]]]:
    """The trials of all mutants that are asked for, two at a time."""
    names = {
        item.callspec.id
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.function is test_mutant_is_caught
    }
    with ThreadPoolExecutor(2) as pool:
        started = {m.name: pool.submit(try_mutant, m) for m in MUTANTS if m.name in names}
        yield started
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("mutant", SAMPLE, ids=by_name)
def test_mutant_is_caught(mutant: Mutant, trials: dict[str, Future[Verdict]]) -> None:
    verdict = trials[mutant.name].result()
    assert verdict.caught_by is not None, f"{mutant.mistake} Not noticed: {verdict.words}"


@pytest.mark.long
@pytest.mark.parametrize("mutant", [m for m in MUTANTS if isinstance(m.catcher, Seeds)], ids=by_name)
def test_mutant_is_caught_by_seeds_that_nobody_chose(mutant: Mutant) -> None:
    assert isinstance(mutant.catcher, Seeds)
    patient = replace(mutant, catcher=replace(mutant.catcher, seeds_max=1_000))
    verdict = try_mutant(patient, is_fresh=True)
    assert verdict.caught_by is not None, f"{mutant.mistake} Not noticed: {verdict.words}"


# -- planting and trying -----------------------------------------------------------------------------------


def test_copy_has_the_edit_and_the_source_has_not() -> None:
    before = (ROOT / QUORUM).read_text(encoding="utf-8")
    with planted([Edit(QUORUM, "falling[quorum - 1]", "falling[quorum - 2]")]) as root:
        assert "falling[quorum - 2]" in (root / QUORUM).read_text(encoding="utf-8")
        assert (root / "dledger/core/node.py").samefile(ROOT / "dledger/core/node.py")
        assert not (root / "dledger/core/__pycache__").exists()
        assert not (root / ".git").exists()
    assert not root.exists()
    assert (ROOT / QUORUM).read_text(encoding="utf-8") == before


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (Edit(QUORUM, "nowhere to be found", ""), "0 times"),
        (Edit(QUORUM, "quorum", ""), "expected once"),
        (Edit(QUORUM, "return falling[quorum - 1]", "return ("), "does not compile"),
        (Edit("dledger/core/none.py", "x", ""), "no such file"),
    ],
)
def test_edit_that_does_not_fit_is_refused(edit: Edit, reason: str) -> None:
    with pytest.raises(EditError, match=reason):
        edited_files([edit])


@pytest.mark.parametrize("catcher", [QUORUM_TEST, Seeds("group", 0, 1)])
def test_edit_that_breaks_nothing_survives(catcher: Case | Seeds) -> None:
    """The verdict is not given by the planting itself."""
    failed, _ = try_edits(
        [Edit(QUORUM, "return falling[quorum - 1]", "return falling[quorum - 1] + 0")], catcher
    )
    assert failed is None


@pytest.mark.parametrize("catcher", [QUORUM_TEST, Seeds("group", 0, 1)])
def test_module_that_cannot_be_imported_is_no_verdict(catcher: Case | Seeds) -> None:
    edit = Edit(
        QUORUM,
        "from collections.abc import Collection, Iterable",
        "from collections.abc import Iterable, Nothing",
    )
    with pytest.raises(TrialError):
        try_edits([edit], catcher)


def test_test_that_is_not_there_is_no_verdict() -> None:
    with pytest.raises(TrialError):
        try_edits([], Case("tests/unit/dledger/test_quorum.py::test_of_nothing"))


# -- what is printed ---------------------------------------------------------------------------------------


def test_report_counts_and_names() -> None:
    seeded = Mutant("one", "elections", "Breaks | bars.", "Raft 1", Seeds("group", 7), ())
    tested = Mutant("two", "storage", "Breaks.", "Raft 2", QUORUM_TEST, ())
    verdicts = [
        Verdict(seeded, "group seed 9", "", 1.0),
        Verdict(tested, QUORUM_TEST.test, "", 1.0),
        Verdict(tested, None, "the test passed", 1.0),
    ]
    assert summary(verdicts) == "caught 2 of 3"
    assert [caught_by(verdict) for verdict in verdicts] == [
        "group seed 9",
        "test_quorum.py::test_committable_index",
        "nothing: the test passed",
    ]
    lines = markdown(verdicts).splitlines()
    assert "| `one` | Breaks \\| bars. | Raft 1 | `group seed 9` |" in lines
    assert lines[-1] == "caught 2 of 3"


def test_page_names_the_catalogue() -> None:
    """Otherwise: scripts/mutants --markdown > docs/mutants.md."""
    page = (ROOT / "docs" / "mutants.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert [row.split(" | ")[0] for row in rows] == [f"| `{mutant.name}`" for mutant in MUTANTS]
    printed = {by_name(mutant): markdown([Verdict(mutant, "it", "", 0.0)]) for mutant in MUTANTS}
    for mutant, row in zip(MUTANTS, rows, strict=True):
        mistake_and_source = row.rpartition(" | ")[0]
        assert mistake_and_source in printed[mutant.name], mutant.name
        assert "`nothing: " not in row
    assert page.endswith(f"caught {len(MUTANTS)} of {len(MUTANTS)}\n")


def test_catalogue_is_in_toml_only() -> None:
    assert {path.suffix for path in Path(__file__).with_name("catalogue").iterdir()} == {".toml"}
