"""Which tests run in pure Python, too."""

from tests.support.twins import covered_tests, twin_tests


def test_of_a_compiled_rule_and_of_what_drives_it() -> None:
    found = twin_tests()
    assert "tests/unit/dledger/test_codec.py" in found
    assert "tests/unit/dledger/test_persister.py" in found
    assert "tests/unit/commitlog/test_entry_store.py" in found
    assert "tests/unit/remoting/test_links.py" in found
    assert not any(name.startswith("tests/unit/native/") for name in found)


def test_that_use_a_pure_module_through_a_helper_are_measured_too() -> None:
    found = covered_tests()
    assert "tests/unit/dledger/test_dispatcher_pace.py" in found
    assert "tests/unit/commitlog/test_log_machine.py" in found
    assert len(found) == len(set(found))
