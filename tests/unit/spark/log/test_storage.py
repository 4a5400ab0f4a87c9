"""Names of files on file systems that differ in how a path begins."""

from __future__ import annotations

from collections.abc import Iterator

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.utils import infer_storage_options

from rocketmq_spark.log.storage import Storage


class RemoteFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """As those for WebHDFS and SMB: paths begin with a slash, which the name of the root does not say."""

    protocol = "remote"
    root_marker = ""

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(infer_storage_options(path)["path"])


@pytest.fixture
def root() -> Iterator[str]:
    """A folder that both `memory://` and `remote://` have."""
    fsspec.register_implementation("remote", RemoteFileSystem, clobber=True)
    memory = fsspec.filesystem("memory")
    name = "/storage-tests"
    memory.pipe({f"{name}/checkpoint": b"small", f"{name}/data/0": b"0123456789"})
    yield name
    memory.rm(name, recursive=True)


@pytest.mark.parametrize("url", ["memory:/{root}", "remote://host:1{root}"])
def test_files_are_found_by_names_made_from_the_root(root: str, url: str) -> None:
    storage = Storage(url.format(root=root))
    (folder,) = storage.glob()
    assert storage.list(folder) == {"checkpoint": 5, "data": -1}
    assert storage.read_small(f"{folder}/checkpoint") == b"small"
    assert storage.read(f"{folder}/data/0", 2, 3) == b"234"
