"""The behaviours of the replication engine as traces of a whole cluster, one script for each."""

import re
from pathlib import Path

import pytest

from tests.golden.dledger_cluster import Cluster
from tests.golden.runner import check_script, scripts_in

SCRIPTS = Path(__file__).parent / "dledger"
PAGE = Path(__file__).parents[2] / "docs" / "dledger.md"


@pytest.mark.parametrize("path", scripts_in(SCRIPTS), ids=lambda path: path.stem)
def test_dledger_trace(path: Path, is_rewriting: bool) -> None:
    check_script(path, Cluster().run, is_rewriting)


def test_page_on_the_engine_names_every_trace_and_no_other() -> None:
    lists = re.findall(r"\[([a-z0-9_,\s]+)\](?!\()", PAGE.read_text())
    named = {name.strip() for names in lists for name in names.split(",")}
    assert named == {path.stem for path in scripts_in(SCRIPTS)}
