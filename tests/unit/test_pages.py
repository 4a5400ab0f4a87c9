"""Pages have the tables that follow from the code, and each row says what the thing is."""

import pytest

from tests.support.pages import TABLES, Table

COMMAND = "python -m tests.support.pages"


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_page_has_the_table_of_the_code(table: Table) -> None:
    assert table.written() == table.text(), f"write {table.page} again: {COMMAND}"


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_row_has_a_meaning(table: Table) -> None:
    assert [row[0] for row in table.rows() if not row[-1]] == []
