"""The key-value table and its file."""

from pathlib import Path

import orjson
import pytest

from namesrv.config import KvConfig, KvConfigError


def test_items_are_put_read_and_deleted() -> None:
    table = KvConfig(None)
    assert table.get("N", "k") is None
    assert table.table.get("N") is None
    table.put("N", "k", "v")
    table.put("N", "k", "w")
    assert table.get("N", "k") == "w"
    assert table.table.get("N") == {"k": "w"}
    table.delete("N", "k")
    table.delete("N", "k")
    table.delete("M", "k")
    assert table.table.get("N") == {}


def test_file_holds_every_change_in_rocketmqs_form(tmp_path: Path) -> None:
    path = tmp_path / "conf" / "kvConfig.json"
    table = KvConfig(path)
    table.put("ORDER_TOPIC_CONFIG", "T", "broker-a:4")
    table.put("ORDER_TOPIC_CONFIG", "U", "broker-a:8")
    table.delete("ORDER_TOPIC_CONFIG", "U")
    assert orjson.loads(path.read_bytes()) == {"configTable": {"ORDER_TOPIC_CONFIG": {"T": "broker-a:4"}}}
    assert KvConfig(path).table.get("ORDER_TOPIC_CONFIG") == {"T": "broker-a:4"}
    assert [entry.name for entry in path.parent.iterdir()] == ["kvConfig.json"]


def test_change_that_cannot_be_written_is_not_made(tmp_path: Path) -> None:
    table = KvConfig(tmp_path / "kvConfig.json")
    table.put("N", "k", "v")
    (tmp_path / "kvConfig.json.tmp").mkdir()
    with pytest.raises(IsADirectoryError):
        table.put("N", "k", "w")
    with pytest.raises(IsADirectoryError):
        table.delete("N", "k")
    assert table.get("N", "k") == "v"


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b'{"configTable":[]}', b'{"configTable":{"N":1}}'])
def test_damaged_file_is_refused_and_left_as_it_is(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_bytes(data)
    with pytest.raises(KvConfigError, match=r"kvConfig\.json"):
        KvConfig(path)
    assert path.read_bytes() == data


def test_table_is_bounded() -> None:
    table = KvConfig(None, items_max=2)
    table.put("N", "a", "1")
    table.put("M", "a", "1")
    with pytest.raises(KvConfigError, match="2 items"):
        table.put("N", "b", "1")
    table.put("N", "a", "2")
    assert table.get("N", "a") == "2"
