"""`ledgermq upgrade-check` and `upgrade-finish`: what they print and how they end, and formats of a store."""

import struct
from pathlib import Path

import pytest

from admin_api.upgrades.routes import router
from ledgermq.local.store_formats import read_store
from tests.unit.ledgermq.fake_admin import Asked, as_json, serving
from tests.unit.ledgermq.running import CommandLine

REPORT = router.routes[0].responses[200]["content"]["application/json"]["example"]  # type: ignore[attr-defined]
PREVIEW = {
    "action": "upgrade.finish",
    "target": "replication group broker-a",
    "isDryRun": True,
    "isDestructive": True,
    "effects": [{"subject": "format level", "before": "2", "after": "3"}],
    "warnings": ["There is no way back."],
    "confirmation": "c",
    "outcomes": [],
    "isPartial": False,
}


def make_store(folder: Path, format_version: int = 1, keys_version: int = 1) -> Path:
    log = folder / "dledger-n0"
    log.mkdir(parents=True)
    (log / "format").write_bytes(b'{"format":"dledger-entries","version":%d}' % format_version)
    (log / "currterm").write_bytes(b"currTerm=3\nvoteLeader=n0\nformatVersion=1\ncrc32=1\n")
    (folder / "keyindex").mkdir()
    (folder / "keyindex" / "0").write_bytes(struct.pack(">8sH", b"LMQ_KEYS", keys_version))
    return folder


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


def test_the_formats_of_a_store_are_listed(tmp_path: Path) -> None:
    found = read_store(make_store(tmp_path))
    assert found["isReadable"]
    assert {file["file"]: file["version"] for file in found["files"]} == {
        "dledger-n0/format": 1,
        "dledger-n0/currterm": 1,
        "keyindex/0": 1,
    }


def test_a_derived_file_of_a_later_version_is_built_again(tmp_path: Path) -> None:
    assert read_store(make_store(tmp_path, keys_version=9))["isReadable"]


@pytest.mark.parametrize("content", [b"", b"{", b'{"version":99}', b"\x00" * 100])
def test_a_log_that_this_release_does_not_read_stops_the_upgrade(tmp_path: Path, content: bytes) -> None:
    store = make_store(tmp_path)
    (store / "dledger-n0" / "format").write_bytes(content)
    found = read_store(store)
    assert not found["isReadable"]
    assert "dledger-n0/format" in found["summary"]


def test_stores_alone_need_no_cluster(run: CommandLine, tmp_path: Path) -> None:
    good, bad = make_store(tmp_path / "good"), make_store(tmp_path / "bad", format_version=99)
    assert run("upgrade-check", "--no-cluster", "--store", str(good)).code == 0
    ran = run("upgrade-check", "--no-cluster", "--store", str(good), "--store", str(bad))
    assert ran.code == 1
    assert "does not read dledger-n0/format" in ran.out
    assert run("upgrade-check", "--no-cluster").code == 2
    assert "is no store" in run("upgrade-check", "--no-cluster", "--store", str(tmp_path)).err


@pytest.mark.parametrize("is_ready", [True, False])
def test_the_exit_code_says_whether_an_upgrade_can_go_on(run: CommandLine, is_ready: bool) -> None:
    with serving(lambda _: as_json(200, REPORT | {"isReady": is_ready})) as admin:
        ran = run("upgrade-check", "--admin", admin.url)
        listed = run("upgrade-check", "--admin", admin.url, "--json")
    assert (ran.code, listed.code) == (0 if is_ready else 1,) * 2
    assert "n0 is down" in ran.out
    assert "broker-a 1. n1: stop it" in ran.out
    assert (listed.json["isReady"], listed.json["stores"]) == (is_ready, [])


def test_the_last_step_is_confirmed(run: CommandLine) -> None:
    done = PREVIEW | {
        "isDryRun": False,
        "outcomes": [{"subject": "broker-a at format level 3", "ok": True, "problem": None, "code": None}],
    }

    def answer(asked: Asked) -> tuple[int, bytes]:
        return as_json(200, done if "confirmation=c" in asked.target else PREVIEW)

    with serving(answer) as admin:
        assert run("upgrade-finish", "--group", "broker-a", "--admin", admin.url, "--json").code == 2
        ran = run("upgrade-finish", "--group", "broker-a", "--admin", admin.url, "--yes")
        assert [asked.target.partition("?")[0] for asked in admin.asked][-1] == (
            "/api/v1/replication/broker-a/format-level"
        )
    assert (ran.code, "no way back" in ran.err) == (0, True)
