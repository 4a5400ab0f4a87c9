"""The table in docs/crash_safety.md says what the tests do, and each test it names is there."""

import pytest

from tests.unit.commitlog.damage_page import OTHER_ROWS, ROOT, PageRow, parts, table


def test_page_has_the_table_of_the_tests() -> None:
    _, within, _ = parts()
    assert within == table(), "write it again: python -m tests.unit.commitlog.damage_page"


@pytest.mark.parametrize("row", OTHER_ROWS, ids=lambda row: f"{row.file}: {row.damage}")
def test_tests_of_a_row_are_there(row: PageRow) -> None:
    assert row.tests
    for test in row.tests:
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), test
