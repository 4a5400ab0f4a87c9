"""Why truncation by high watermark was given up: the article's example as a trace of a small model."""

from pathlib import Path

import pytest

from tests.golden.high_watermark_model import Replicas
from tests.golden.runner import check_script, parse_script, scripts_in

SCRIPTS = Path(__file__).parent / "high_watermark"


@pytest.mark.parametrize("path", scripts_in(SCRIPTS), ids=lambda path: path.stem)
def test_high_watermark_trace(path: Path, is_rewriting: bool) -> None:
    check_script(path, Replicas().run, is_rewriting)


def run_schedule(rule: str) -> Replicas:
    """Both messages acknowledged by A; then B restarts, A crashes, B leads, A follows."""
    replicas = Replicas()
    script = Path(SCRIPTS / "truncation_loses_a_message.txt").read_text()
    for block in parse_script(script.replace("rule=high_watermark", f"rule={rule}")):
        for command in block.commands:
            replicas.run(command)
    return replicas


def test_high_watermark_rule_loses_what_the_epoch_rule_keeps() -> None:
    bodies = {
        rule: [[body for _, body in replica.log] for replica in run_schedule(rule).replicas.values()]
        for rule in ("high_watermark", "leader_epoch")
    }
    assert bodies == {"high_watermark": [[], []], "leader_epoch": [["m1", "m2"], ["m1", "m2"]]}
