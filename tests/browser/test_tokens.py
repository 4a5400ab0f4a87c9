"""The page of an admin service that wants to know who asks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import expect

from ledgermq.local.plan import is_free
from tests.browser.conftest import OpenPage
from tests.browser.stage import GROUP, Stage
from tests.integration.waiting import wait_for

READER = "only-looks-0123456789"
LIMIT_S = 20.0


@pytest.fixture
def guarded(stage: Stage, tmp_path: Path) -> Iterator[str]:
    """A second admin process over the same cluster, with one token that may only look."""
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(f'[[tokens]]\nname = "watcher"\nrole = "read"\ntoken = "{READER}"\n')
    tokens.chmod(0o600)
    port = next(port for port in range(stage.cluster.admin_port + 100, 60_000) if is_free(port))
    command = [sys.executable, "-m", "admin_api", "--namesrv", stage.cluster.namesrv]
    process = subprocess.Popen([*command, "--port", str(port), "--tokens", str(tokens)])
    try:
        address = f"http://127.0.0.1:{port}"
        wait_for("the guarded admin process", lambda: _serves(address), LIMIT_S)
        yield address
    finally:
        process.terminate()
        process.wait(LIMIT_S)


def _serves(address: str) -> bool:
    try:
        return httpx.get(f"{address}/healthz", timeout=2).status_code == 200
    except httpx.TransportError:
        return False


def test_a_token_is_asked_for_and_kept_for_the_tab(open_page: OpenPage, guarded: str) -> None:
    page = open_page("", origin=guarded)
    question = page.get_by_role("dialog", name="Sign in")
    expect(question).to_be_visible()
    page.get_by_label("Token").fill("a guess that is wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_text("That token was not accepted.")).to_be_visible()
    page.get_by_label("Token").fill(READER)
    page.keyboard.press("Enter")
    expect(page.locator("#live")).to_have_attribute("data-state", "live")
    expect(page.locator('.node[data-role="LEADER"]')).to_be_visible()
    page.reload()
    expect(page.locator('.node[data-role="LEADER"]')).to_be_visible()
    expect(question).to_have_count(0)

    page.goto(f"{guarded}/#/groups/{GROUP}")
    page.get_by_role("button", name="Skip what has accumulated…").click()
    page.get_by_role("button", name="Show what happens").click()
    expect(page.get_by_text("The token watcher may only read.")).to_be_visible()
    page.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Sign out").click()
    expect(question).to_be_visible()
    page.keyboard.press("Escape")
    expect(question).to_have_count(0)
    expect(page.locator("#live")).to_contain_text("A token is needed")
    page.get_by_role("button", name="Sign in").click()
    expect(question).to_be_visible()
