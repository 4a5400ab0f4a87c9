"""docs/compatibility.md says of every request code who answers it, and says what is so."""

import asyncio
import re
from pathlib import Path

import pytest

from broker.admin import feature as admin
from broker.app import install_features
from namesrv.config import NameServerConfig
from namesrv.server import NameServer
from remoting.codes import RequestCode
from tests.support.broker_parts import FakeEngine, make_parts
from tests.support.fake_log import FakeLog

TEXT = Path(__file__).parents[2].joinpath("docs/compatibility.md").read_text(encoding="utf-8")
TO_CLIENTS = frozenset(
    {
        RequestCode.CHECK_TRANSACTION_STATE,
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
        RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
    }
)
"""What a broker asks of clients, and nobody of a broker."""
CELLS = {"works", "works (option)", "answers", "refused", "-"}


def rows(section: str) -> list[list[str]]:
    part = TEXT.split(f"## {section}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in part.splitlines() if re.match(r"\| [\d`]", line)]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


@pytest.fixture
async def broker_codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> frozenset[int]:
    """What the broker's processors serve."""
    parts = make_parts(tmp_path, FakeLog(), FakeEngine())
    monkeypatch.setattr("broker.app.unsupported_handlers", lambda codes: {})
    install_features(parts.core)
    return parts.router.codes


@pytest.fixture
async def actual(broker_codes: frozenset[int]) -> dict[int, str]:
    """Of every code we know by name who answers it."""
    of_name_server = NameServer(NameServerConfig()).codes
    answered: dict[int, str] = {}
    for code in RequestCode:
        if code in of_name_server:
            answered[code] = "name server"
        elif code in broker_codes:
            answered[code] = "broker"
        elif code in TO_CLIENTS:
            answered[code] = "to clients"
        elif code in admin.REASONS:
            answered[code] = "not supported"
        else:
            answered[code] = "no process: register it, or give broker/admin/feature.py a reason"
    await asyncio.sleep(0)
    return answered


async def test_every_code_has_a_row_that_says_what_is_so(actual: dict[int, str]) -> None:
    told = {int(row[0]): row for row in rows("Request codes")}
    missing = [
        f"| {code} | {RequestCode(code).name} | {who} | Java | Go | C++/Python | mqadmin |"
        for code, who in actual.items()
        if code not in told
    ]
    assert missing == [], "docs/compatibility.md lacks these rows"
    wrong = {code: (told[code][2], "is", who) for code, who in actual.items() if told[code][2] != who}
    assert wrong == {}, "docs/compatibility.md says otherwise"
    assert {code: row[1] for code, row in told.items()} == {int(code): code.name for code in RequestCode}


def test_the_rows_are_in_order_and_whole() -> None:
    table = rows("Request codes")
    codes = [int(row[0]) for row in table]
    assert codes == sorted(set(codes))
    assert {len(row) for row in table} == {7}
    assert {cell for row in table for cell in row[3:6]} <= CELLS
    refused = {row[2] for row in table if "refused" in row[3:6]}
    assert refused <= {"not supported"}


async def test_reasons_are_those_the_broker_gives(actual: dict[int, str]) -> None:
    told = {int(code): row[1] for row in rows("Unsupported request codes") for code in row[0].split(", ")}
    given = {int(code): admin.REASONS[code] for code in RequestCode if actual[code] == "not supported"}
    assert told == given


async def test_no_reason_is_kept_for_what_is_served(broker_codes: frozenset[int]) -> None:
    assert broker_codes & set(admin.REASONS) == set()


def test_reasons_are_sentences_for_a_person() -> None:
    for code, reason in admin.REASONS.items():
        assert 20 <= len(reason) <= 200, code
        assert not reason.endswith("."), code
