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


def test_a_module_behind_its_feature_has_the_tests_of_the_feature() -> None:
    found = nearest_tests(["broker/send/processor.py"])
    assert "tests/unit/broker/test_send.py" in found
    assert "tests/unit/broker/test_pull.py" not in found


def test_tests_that_use_a_module_through_a_helper_come_too() -> None:
    assert "tests/unit/test_pages.py" in nearest_tests(["broker/config.py"])
