"""Folders, ports and settings of a broker for tests."""

import fcntl
import os
import tempfile
import time
from pathlib import Path

import pytest

from broker.config import load_config
from ledgermq.errors import UserError
from ledgermq.local.plan import Scalar, require_plan
from ledgermq.testing import homes
from ledgermq.testing.homes import (
    ABANDONED_S,
    HOME_PREFIX,
    LOCK_NAME,
    PORTS_FROM,
    PORTS_TO,
    home_at,
    plan_in,
)
from sockets.listening import bound_now


def test_without_a_path_the_folder_is_removed_with_all_in_it() -> None:
    with home_at(None) as home:
        (home / "n0").mkdir()
        (home / "n0" / "file").write_text("data")
    assert not home.exists()


def test_a_path_stays(tmp_path: Path) -> None:
    with home_at(tmp_path / "new" / "home") as home:
        (home / "file").write_text("data")
    assert (tmp_path / "new" / "home" / "file").read_text() == "data"


def test_the_folder_is_in_memory_where_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(homes, "MEMORY_FOLDER", tmp_path)
    monkeypatch.setattr(homes, "MEMORY_BYTES_MIN", 1)
    with home_at(None) as home:
        assert home.parent == tmp_path


@pytest.mark.parametrize("left", ["long ago", "just now", "in use", "by another program"])
def test_what_killed_tests_have_left_is_removed(
    left: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(homes, "MEMORY_FOLDER", tmp_path)
    monkeypatch.setattr(homes, "MEMORY_BYTES_MIN", 1)
    old = tmp_path / ("other-1" if left == "by another program" else f"{HOME_PREFIX}1")
    (old / "n0").mkdir(parents=True)
    with (old / LOCK_NAME).open("w") as lock:
        if left == "in use":
            fcntl.flock(lock, fcntl.LOCK_EX)
        age_s = 0 if left == "just now" else 2 * ABANDONED_S
        os.utime(old, (time.time() - age_s,) * 2)
        with home_at(None):
            assert old.exists() == (left != "long ago")


@pytest.mark.parametrize("room", ["too little", "no such folder"])
def test_without_room_in_memory_it_is_with_other_temporary_files(
    room: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(homes, "MEMORY_FOLDER", tmp_path / "there" if room == "no such folder" else tmp_path)
    monkeypatch.setattr(homes, "MEMORY_BYTES_MIN", 1 << 60)
    with home_at(None) as home:
        assert home.parent == Path(tempfile.gettempdir())


def test_the_plan_has_free_ports_of_its_own_and_no_other_services(tmp_path: Path) -> None:
    plan = plan_in(tmp_path, 3, None)
    ports = plan.ports()
    assert len(ports) == 1 + 3 * 3
    assert all(PORTS_FROM <= port <= PORTS_TO + 100 for port in ports)
    for port in ports:
        bound_now("127.0.0.1", port).close()
    assert require_plan(tmp_path) == plan


def test_a_tests_settings_override_those_of_tests_and_own_ones_override_both(tmp_path: Path) -> None:
    settings: dict[str, Scalar] = {"durability": "persisted", "defaultTopicQueueNums": 3, "regionId": "test"}
    plan = plan_in(tmp_path, 1, settings, {"regionId": "own"})
    config = load_config(plan.nodes[0].config_file)
    assert (config.durability, config.default_topic_queue_nums) == ("persisted", 3)
    assert config.region_id == "own"
    assert config.data_file_bytes == 16 * 1024 * 1024
    assert not config.clean_forcibly_enable, "as of every local cluster"


@pytest.mark.parametrize("settings", [{"listenPort": 10911}, {"noSuchKey": 1}, {"topicsMax": 0}])
def test_settings_that_cannot_be_used_are_refused_before_anything_starts(
    settings: dict[str, int], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=next(iter(settings))):
        plan_in(tmp_path, 1, settings)


def test_a_folder_keeps_its_ports_and_settings(tmp_path: Path) -> None:
    first = plan_in(tmp_path, 1, {"regionId": "test"})
    second = plan_in(tmp_path, 1, {"topicsMax": 7})
    assert second.ports() == first.ports()
    assert second.settings["regionId"] == "test"
    assert second.settings["topicsMax"] == "7"


def test_a_folder_with_another_number_of_nodes_is_refused(tmp_path: Path) -> None:
    plan_in(tmp_path, 3, None)
    with pytest.raises(UserError, match="has 3 nodes, not 1"):
        plan_in(tmp_path, 1, None)


def test_a_folder_whose_ports_are_in_use_is_refused(tmp_path: Path) -> None:
    plan = plan_in(tmp_path, 1, None)
    with bound_now("127.0.0.1", plan.namesrv_port) as other:
        other.listen()
        with pytest.raises(UserError, match=str(plan.namesrv_port)):
            plan_in(tmp_path, 1, None)


def test_without_free_ports_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(homes, "is_free", lambda port: False)
    with pytest.raises(UserError, match="no free ports"):
        plan_in(tmp_path, 1, None)
