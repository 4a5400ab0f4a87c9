"""A store that is read while another process writes to it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rocketmq_spark.log.entries import EntryBlock
from rocketmq_spark.log.planning import plan_ranges
from tests.integration.client_runs import ROOT
from tests.unit.spark.log.stores import damages, one_log, walk

GROWTHS = 12
"""So often must the reader find the store longer than before."""
WRITER = """
import sys
from pathlib import Path
from commitlog.entry import write_physical_offset
from commitlog.entry_files import EntryStoreConfig
from commitlog.entry_store import open_entry_store
from tests.unit.spark.log.stores import numbered, records
config = EntryStoreConfig(data_file_bytes=1 << 18, index_file_bytes=1 << 14, chunk_bytes_max=1 << 16,
                          reserve_bytes=1 << 18)
store = open_entry_store(Path(sys.argv[1]) / "dledger-n0", config, write_physical_offset)
bodies = records(numbered(200, size=400))
print("ready", flush=True)
for number in range(30_000):
    store.append_bodies(store.end_index + 1, 1, bodies[: 1 + number % 40])
    writes = store.take_writes()
    store.write(writes, False)
    store.written(writes)
    if number % 50 == 0:
        store.save_checkpoint(store.end_index, store.end_index)
"""


def test_a_growing_store_has_no_damage(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
            grew = seen = 0
            while grew < GROWTHS:
                log = one_log(tmp_path)
                ranges = plan_ranges(log, 1 << 17, include_uncommitted=True)
                found = walk(log, ranges[-3:])
                log.storage.close()
                assert [each for each in damages(found) if each.status != "torn"] == []
                ends = [each.first_index + len(each) for each in found if isinstance(each, EntryBlock)]
                grew += max(ends, default=0) > seen
                seen = max(ends, default=seen)
                assert writer.poll() is None, "the writer ended before the store was seen to grow"
        finally:
            writer.kill()
