"""Which tests scripts/check runs for a change."""

from tests.support.touched import nearest_tests


def test_of_a_module_come_its_own_tests_first_then_those_that_import_it() -> None:
    found = nearest_tests(["telemetry/histogram.py"])
    assert found[0] == "tests/unit/telemetry/test_histogram.py"
    assert len(found) > 1
    assert all(path.startswith(("tests/unit/", "tests/golden/")) for path in found)


def test_a_changed_test_is_run_itself() -> None:
    assert nearest_tests(["tests/unit/test_touched.py"]) == ["tests/unit/test_touched.py"]


def test_a_page_has_no_tests_of_its_own() -> None:
    assert nearest_tests(["README.md"]) == []
