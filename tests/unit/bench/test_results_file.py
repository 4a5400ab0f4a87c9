"""To which commit figures belong."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bench.results_file import COMMIT_KEY, commit_of


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=bench", "-c", "user.email=bench@localhost")
    command = ["git", "-C", str(folder), *who, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()


@pytest.fixture
def checked_out(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    for name in ("code.py", "bench/results/old.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    return tmp_path


def test_commit_is_the_one_checked_out_also_beside_new_figures(checked_out: Path) -> None:
    (checked_out / "bench/results/old.json").write_text("2\n")
    (checked_out / "left.log").write_text("not added\n")
    assert commit_of(checked_out) == git(checked_out, "rev-parse", "--short", "HEAD")


def test_commit_of_code_that_was_changed_since_is_marked(checked_out: Path) -> None:
    (checked_out / "code.py").write_text("2\n")
    assert commit_of(checked_out) == git(checked_out, "rev-parse", "--short", "HEAD") + "-dirty"


def test_copy_without_git_says_that_it_does_not_know_or_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.delenv(COMMIT_KEY, raising=False)
    assert commit_of(tmp_path) == "unknown"
    assert "not a git repository" in capsys.readouterr().err
    monkeypatch.setenv(COMMIT_KEY, "abc1234")
    assert commit_of(tmp_path) == "abc1234"
    assert not capsys.readouterr().err
