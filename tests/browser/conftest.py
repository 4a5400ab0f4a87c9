"""A browser, a cluster with something in it, and pages that may not complain."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.browser.stage import Stage, keeping_users, set_up
from tests.integration.client_runs import need
from tests.integration.cluster import Cluster
from tests.integration.conftest import measured

__all__ = ["measured"]

NAMES = ("chromium", "chromium-browser", "google-chrome")
WAIT_MS = 60_000
PHONE = (375, 812)
DESK = (1200, 900)
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
EXPECTED = (
    "net::ERR_",
    "the server responded with a status of 4",
    "the server responded with a status of 50",
)
"""What the browser itself writes when a request fails: tests that break something cause it."""

OpenPage = Callable[..., Page]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/browser" in item.nodeid:
            item.add_marker(pytest.mark.integration)


@pytest.fixture(scope="session")
def chromium() -> str:
    """The program; the tests are skipped where there is none."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    need("browser", program is not None, "apt install chromium")
    assert program is not None
    return program


@pytest.fixture(scope="session")
def stage(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One cluster for all; a test that kills a node starts it again."""
    cluster = Cluster(tmp_path_factory.mktemp("browser"))
    try:
        cluster.start(keeping_users(cluster.folder), admin=True)
        yield set_up(cluster)
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    """Not longer than a module: while Playwright runs, no other test can run a loop."""
    expect.set_options(timeout=WAIT_MS)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser: Browser, stage: Stage) -> Iterator[OpenPage]:
    """`open_page("#/topics")`: a new page there; at the end none may have complained."""
    complaints: list[str] = []
    contexts = []

    def complain(text: str) -> None:
        if not any(part in text for part in EXPECTED):
            complaints.append(text)

    def open_at(
        address: str, size: tuple[int, int] = DESK, *, is_dark: bool = False, origin: str | None = None
    ) -> Page:
        context = browser.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme="dark" if is_dark else "light",
            reduced_motion="reduce",
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.on("console", lambda said: complain(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complain(str(error)))
        page.goto(f"{origin or stage.cluster.admin}/{address}")
        return page

    yield open_at
    for context in contexts:
        context.close()
    assert complaints == []
