"""Which tests run in pure Python, too."""

from tests.support.twins import twin_tests


def test_of_a_compiled_rule_and_of_what_drives_it() -> None:
    found = twin_tests()
    assert "tests/unit/dledger/test_codec.py" in found
    assert "tests/unit/dledger/test_persister.py" in found
    assert "tests/unit/commitlog/test_entry_store.py" in found
    assert "tests/unit/remoting/test_links.py" in found
    assert not any(name.startswith("tests/unit/native/") for name in found)
