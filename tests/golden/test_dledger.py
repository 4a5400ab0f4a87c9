"""The behaviours of the replication engine as traces of a whole cluster, one script for each."""

from pathlib import Path

import pytest

from tests.golden.dledger_cluster import Cluster
from tests.golden.runner import check_script, scripts_in

SCRIPTS = Path(__file__).parent / "dledger"


@pytest.mark.parametrize("path", scripts_in(SCRIPTS), ids=lambda path: path.stem)
def test_dledger_trace(path: Path, is_rewriting: bool) -> None:
    check_script(path, Cluster().run, is_rewriting)
