"""The programs on the page about consumers run as they stand there, but for their address and their times."""

import asyncio
import re
from pathlib import Path

import pytest

from tests.unit.ledgermq.client.fake_queues import FakeGroup

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs/python_client.md").read_text(encoding="utf-8").partition("## Consume")[2]
PROGRAMS = dict(re.findall(r"^### (.+?)\n+```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
GROUPS = {
    "orders": "billing",
    "accounts": "ledger",
    "signups": "mails",
    "resets": "mails",
    "prices": "caches",
}


def test_the_page_has_a_program_for_each_kind() -> None:
    assert len(PROGRAMS) == 5


@pytest.mark.parametrize("title", PROGRAMS)
async def test_the_program_runs(title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    group = FakeGroup(queues=2)
    group.topics = dict.fromkeys(GROUPS, 2) | {f"%RETRY%{name}": 1 for name in GROUPS.values()}
    for topic in GROUPS:
        group.broker.put(b"body", topic=topic, TAGS="paid")
    async with group.running():
        program = PROGRAMS[title].replace("127.0.0.1:9876", group.namesrv)
        program = re.sub(r"(sleep|wait)\(60\)", r"\1(0.05)", program)
        await asyncio.to_thread(exec, compile(program, title, "exec"), {"__name__": "__main__"})
    assert group.broker.clients == {}
