"""The audit log on disk: nothing lost, nothing twice, bounded."""

import asyncio
import logging
import os
import resource
import stat
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import IO

import pytest

from admin_api.audit import log as audit
from admin_api.audit.log import EFFECTS_MAX, TEXT_MAX, AuditEntry, AuditError, AuditLog, AuditOutcome
from admin_api.schema import EffectView


def entry(number: int, outcome: AuditOutcome = AuditOutcome.APPLIED) -> AuditEntry:
    return AuditEntry(
        id=f"id{number}",
        at_ms=number,
        actor="operator",
        role="operate",
        remote="127.0.0.1",
        action="topic.delete",
        target=f"topic-{number}",
        outcome=outcome,
    )


async def ids(log: AuditLog, first: int = 0, count: int = 100) -> list[str]:
    return [found.id for found in (await log.newest(first, count))[0]]


@pytest.fixture(params=["file", "memory"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AuditLog]:
    with closing(AuditLog(tmp_path / "folder" / "audit.jsonl" if request.param == "file" else None)) as log:
        yield log


async def test_newest_first_in_pages(log: AuditLog) -> None:
    for number in range(5):
        await log.append(entry(number))
    found, total = await log.newest(1, 2)
    assert ([each.id for each in found], total) == (["id3", "id2"], 5)
    assert await log.newest(5, 2) == ([], 5)


async def test_a_change_is_one_entry_and_its_end_counts(log: AuditLog) -> None:
    await log.append(entry(1, AuditOutcome.BEGUN))
    await log.append(entry(2, AuditOutcome.BEGUN))
    await log.append(entry(1, AuditOutcome.FAILED))
    found, total = await log.newest(0, 10)
    assert [(each.id, each.outcome) for each in found] == [("id1", "failed"), ("id2", "begun")]
    assert total == 2


async def test_it_is_there_after_a_restart_also_behind_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    await log.append(entry(1))
    log.close()
    with path.open("ab") as file:
        file.write(b'{"id":"torn')
    with closing(AuditLog(path)) as log:
        await log.append(entry(2))
        assert await ids(log) == ["id2", "id1"]


async def test_only_its_owner_reads_the_file(tmp_path: Path) -> None:
    AuditLog(tmp_path / "audit.jsonl").close()
    assert stat.S_IMODE((tmp_path / "audit.jsonl").stat().st_mode) == 0o600


def test_files_that_were_open_to_others_are_closed_to_them(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("audit.jsonl", "audit.jsonl.1", "audit.jsonl.4")]
    for path in paths:
        path.touch()
        path.chmod(0o664)
    AuditLog(paths[0]).close()
    assert [stat.S_IMODE(path.stat().st_mode) for path in paths] == [0o600] * 3


@pytest.mark.parametrize("name", ["audit.jsonl", "audit.jsonl.2"])
def test_a_file_that_stays_open_to_others_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    def refuse(handle: int, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    path = tmp_path / name
    path.touch()
    path.chmod(0o644)
    monkeypatch.setattr(os, "fchmod", refuse)
    with caplog.at_level(logging.WARNING):
        AuditLog(tmp_path / "audit.jsonl").close()
    assert f"{path} can be read by others (mode 644)" in caplog.text
    path.chmod(0o662)
    with pytest.raises(AuditError, match=r"others may write to it \(mode 662.* Operation not permitted"):
        AuditLog(tmp_path / "audit.jsonl")
    path.chmod(0o600)
    AuditLog(tmp_path / "audit.jsonl").close()  # the one that was refused holds no lock


async def test_who_reads_holds_nobody_up_who_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written meanwhile, and files that were turned over, do not change what is read."""
    is_reading, goes_on = threading.Event(), threading.Event()
    read = audit._rows_backwards

    def slowly(file: IO[bytes], size: int) -> Iterator[tuple[str, audit.Row]]:
        is_reading.set()
        assert goes_on.wait(20)
        yield from read(file, size)

    with closing(AuditLog(tmp_path / "audit.jsonl", file_bytes_max=400, files_max=4)) as log:
        for number in range(3):
            await log.append(entry(number))
        monkeypatch.setattr(audit, "_rows_backwards", slowly)
        reading = asyncio.create_task(log.newest(0, 100))
        try:
            await asyncio.to_thread(is_reading.wait, 20)
            async with asyncio.timeout(20):
                for number in range(3, 8):
                    await log.append(entry(number))
            assert not reading.done()
        finally:
            goes_on.set()
        found, total = await reading
        assert ([each.id for each in found], total) == (["id2", "id1", "id0"], 3)
        assert (await ids(log))[0] == "id7"


async def test_files_are_turned_over_and_the_oldest_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "audit.jsonl"
    with closing(AuditLog(path, file_bytes_max=400, files_max=3)) as log:
        for number in range(20):
            await log.append(entry(number))
        found = await ids(log)
    names = sorted(each.name for each in tmp_path.iterdir())
    assert names == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]
    assert all(each.stat().st_size <= 400 for each in tmp_path.iterdir())
    assert found == [f"id{number}" for number in range(19, 19 - len(found), -1)]
    assert 3 <= len(found) < 20
    assert "audit.jsonl.2 is dropped for newer entries" in caplog.text


@pytest.mark.parametrize("step", ["_open", "_sync_folder"])
async def test_turns_that_fail_cost_no_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """As when no file can be opened any more, or one only: the changes are refused, and what was written
    stays.
    """

    def refuse(path: Path) -> IO[bytes]:
        raise OSError(24, f"{path} cannot be opened")

    with closing(AuditLog(tmp_path / "audit.jsonl", file_bytes_max=400, files_max=4)) as log:
        for number in range(12):
            await log.append(entry(number))
        before = await ids(log)
        with monkeypatch.context() as patched:
            patched.setattr(audit, step, refuse)
            refused = 0
            for number in range(12, 20):
                try:
                    await log.append(entry(number))
                    before.insert(0, f"id{number}")
                except AuditError:
                    refused += 1
        assert refused > 4
        await log.append(entry(20))
        after = await ids(log)
    assert after[0] == "id20"
    assert after[1:] == before[: len(after) - 1]
    assert len(after) >= len(before) - 2


async def test_a_line_that_found_no_room_is_not_there_later(tmp_path: Path) -> None:
    """Its change was refused: neither a part of it nor, once there is room again, all of it may be read."""
    path = tmp_path / "audit.jsonl"
    with closing(AuditLog(path)) as log:
        await log.append(entry(1))
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, hard))
        try:
            with pytest.raises(AuditError, match="cannot be written"):
                await log.append(entry(2))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        await log.append(entry(3))
        assert await ids(log) == ["id3", "id1"]
    assert len(path.read_bytes().splitlines()) == 2


async def test_one_long_entry_fits_whatever_it_says(tmp_path: Path) -> None:
    effects = [EffectView(subject="s" * 5000, before=None, after="a" * 5000)] * 500
    with closing(AuditLog(tmp_path / "audit.jsonl")) as log:
        await log.append(entry(1).model_copy(update={"effects": effects, "problem": "p" * 50_000}))
        ((found,), _) = await log.newest(0, 1)
    assert (len(found.effects), found.effects_total) == (EFFECTS_MAX, 500)
    assert (len(found.problem or ""), len(found.effects[0].after or "")) == (TEXT_MAX, TEXT_MAX)
    assert found.effects[0].before is None


def test_a_file_belongs_to_one_process(tmp_path: Path) -> None:
    with (
        closing(AuditLog(tmp_path / "audit.jsonl")),
        pytest.raises(AuditError, match="in use by another process"),
    ):
        AuditLog(tmp_path / "audit.jsonl")
    AuditLog(tmp_path / "audit.jsonl").close()


def test_a_file_that_cannot_be_is_said_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AuditError, match="cannot be opened: File exists"):
        AuditLog(tmp_path / "file" / "audit.jsonl")
