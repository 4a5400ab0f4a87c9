"""The name server's key-value table by namespace, kept in a file (`KVConfigManager`, `kvConfig.json` of
RocketMQ).
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

ORDER_TOPIC_NAMESPACE = "ORDER_TOPIC_CONFIG"


class KvConfigError(Exception):
    """The file cannot be read as a table, or the table is full."""


class KvConfig:
    """Every change is on disk before it is answered; a change that cannot be written is not made."""

    def __init__(self, path: Path | None, items_max: int = 10_000) -> None:
        """Read the table.

        Raises:
            KvConfigError: the file is there but holds no table.
        """
        self._path = path
        self._items_max = items_max
        self._table: dict[str, dict[str, str]] = _load(path) if path is not None else {}

    def get(self, namespace: str, key: str) -> str | None:
        """The value, or None."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """All items of a namespace, or None if it has never had any."""
        return self._table.get(namespace)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value.

        Raises:
            KvConfigError: the table is full.
            OSError: the file cannot be written.
        """
        is_new = self.get(namespace, key) is None
        if is_new and sum(map(len, self._table.values())) >= self._items_max:
            raise KvConfigError(f"the table holds {self._items_max} items, the bound")
        self._change({**self._table, namespace: {**self._table.get(namespace, {}), key: value}})

    def delete(self, namespace: str, key: str) -> None:
        """Remove a value; nothing happens if there is none.

        Raises:
            OSError: the file cannot be written.
        """
        if self.get(namespace, key) is None:
            return
        rest = {k: v for k, v in self._table[namespace].items() if k != key}
        self._change({**self._table, namespace: rest})

    def _change(self, table: dict[str, dict[str, str]]) -> None:
        if self._path is not None:
            _save(self._path, orjson.dumps({"configTable": table}, option=orjson.OPT_INDENT_2))
        self._table = table


def _load(path: Path) -> dict[str, dict[str, str]]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    try:
        table: dict[str, dict[str, Any]] = orjson.loads(data)["configTable"]
        return {str(n): {str(k): str(v) for k, v in items.items()} for n, items in table.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise KvConfigError(f"{path} holds no table of namespaces: {error!r}") from None


def _save(path: Path, data: bytes) -> None:
    """Write a file beside it, then rename that one: a crash leaves the old table or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".tmp")
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
