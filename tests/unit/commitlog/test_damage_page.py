"""Each test that the table in docs/crash_safety.md names is there."""

import pytest

from tests.unit.commitlog.damage_page import OTHER_ROWS, ROOT, PageRow


@pytest.mark.parametrize("row", OTHER_ROWS, ids=lambda row: f"{row.file}: {row.damage}")
def test_tests_of_a_row_are_there(row: PageRow) -> None:
    assert row.tests
    for test in row.tests:
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), test
