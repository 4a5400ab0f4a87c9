"""An archive that is also a Delta table: each batch of the manifest is one transaction of the table.

The files are the archive's own Parquet files; only `_delta_log` is added. It is written by delta-rs (the
package `deltalake`), which needs no JVM and suits every version of Spark; delta-spark reads the result.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import orjson
import pyarrow as pa

from rocketmq_spark.errors import ArchiveError, SetupError
from rocketmq_spark.jobs.archive.files import FILE_SCHEMA
from rocketmq_spark.jobs.archive.manifest import Batch, DataFile

if TYPE_CHECKING:
    from rocketmq_spark.jobs.archive.store import ArchiveStore

PARTITION_COLUMNS: Final = ("topic", "date", "hour")
_APPLICATION: Final = "ledgermq-archive"
_FIELDS: Final = (("topic", pa.string()), ("date", pa.date32()), ("hour", pa.int32()))
TABLE_SCHEMA: Final = pa.schema([*FILE_SCHEMA, *(pa.field(name, kind) for name, kind in _FIELDS)])


class DeltaLog:
    """The transaction log of one archive."""

    def __init__(self, store: ArchiveStore) -> None:
        """Raises: SetupError when the package is missing, ArchiveError when the archive is plain Parquet."""
        if find_spec("deltalake") is None:
            raise SetupError("the format delta needs the package deltalake: pip install 'ledgermq[delta]'")
        self._store = store
        self._url = store.url("")
        if store.has_manifest() and not store.is_delta():
            raise ArchiveError(
                f"the archive {store.path} was begun as plain Parquet; go on with that format."
            )

    def commit(self, batch: Batch) -> None:
        """Add the batch's files to the table. A repeated call adds nothing."""
        from deltalake import CommitProperties, DeltaTable, Transaction
        from deltalake.transaction import AddAction, create_table_with_add_actions

        if self.holds(batch):
            return
        actions = [
            AddAction(
                path=file.name,
                size=file.file_bytes,
                partition_values=partition_values(file),
                modification_time=batch.head.committed_ms,
                data_change=True,
                stats=orjson.dumps({"numRecords": file.rows}).decode(),
            )
            for file in batch.files
        ]
        properties = CommitProperties(app_transactions=[Transaction(_APPLICATION, batch.head.sequence)])
        partition_by = list(PARTITION_COLUMNS)
        if not self._store.is_delta():
            create_table_with_add_actions(
                self._url,
                _delta_schema(),
                actions,
                partition_by=partition_by,
                commit_properties=properties,
            )
            return
        table = DeltaTable(self._url)
        table.create_write_transaction(
            [*actions], "append", _delta_schema(), partition_by=partition_by, commit_properties=properties
        )

    def holds(self, batch: Batch) -> bool:
        """Whether the table has the batch."""
        version = self._version()
        return version is not None and version >= batch.head.sequence

    def _version(self) -> int | None:
        """The number of the newest batch in the table, None without a table."""
        from deltalake import DeltaTable

        if not self._store.is_delta():
            return None
        return DeltaTable(self._url).transaction_version(_APPLICATION)


def partition_values(file: DataFile) -> dict[str, str | None]:
    """The partition values in the folder names of a file."""
    parts = dict(part.split("=", 1) for part in file.name.split("/")[:-1])
    return {name: unquote(parts[name]) for name in PARTITION_COLUMNS}


def _delta_schema() -> Any:
    from deltalake import Schema

    return Schema.from_arrow(TABLE_SCHEMA)
