"""Pictures of every view, for the documentation.

`python -m tests.browser.screenshots docs/screenshots` starts a cluster with something in it, writes to it for
a minute, takes the pictures, and stops it.
"""

from __future__ import annotations

import asyncio
import io
import math
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from ledgermq.client import Message, Producer
from tests.browser.conftest import ARGUMENTS, NAMES, PHONE
from tests.browser.stage import GROUP, KEY, TOPIC, Stage, keeping_users, set_up
from tests.integration.cluster import Cluster

SIZE = (1100, 820)
WRITTEN_FOR_S = 75
COLOURS = 96
SETTLING_MS = 1500


async def write_some(namesrv: str, seconds: float) -> None:
    """A producer with better and worse moments."""
    begun_s = time.monotonic()
    async with Producer(namesrv) as producer:
        while (now_s := time.monotonic() - begun_s) < seconds:
            await producer.send(Message(TOPIC, b"an order", keys=("bulk",)))
            await asyncio.sleep(0.004 * (1.5 + math.sin(now_s / 6)))


def save(page: Page, path: Path) -> None:
    """With few colours: these are flat pictures, and a repository keeps each of them for ever."""
    picture = Image.open(io.BytesIO(page.screenshot()))
    picture.convert("RGB").quantize(COLOURS).save(path, optimize=True)


def open_page(browser: Browser, size: tuple[int, int], *, is_dark: bool = False) -> Page:
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme="dark" if is_dark else "light"
    )
    return context.new_page()


def take_views(page: Page, stage: Stage, folder: Path) -> None:
    admin = stage.cluster.admin
    found = page.request.get(f"{admin}/api/v1/messages?topic={TOPIC}&key={KEY}").json()["items"][0]
    views = {
        "cluster": "cluster",
        "topics": "topics",
        "topic": f"topics/{TOPIC}",
        "groups": "groups",
        "group": f"groups/{GROUP}",
        "message": f"messages/{found['id']}?topic={TOPIC}",
        "dlq": f"dlq/{GROUP}",
        "nodes": "nodes",
        "node": f"nodes/{stage.cluster.address('n0')}",
        "access": "access",
        "doctor": "doctor",
    }
    for name, address in views.items():
        page.goto(f"{admin}/#/{address}")
        page.wait_for_timeout(SETTLING_MS)
        save(page, folder / f"{name}.png")


def take_finder(page: Page, stage: Stage, folder: Path) -> None:
    page.goto(f"{stage.cluster.admin}/#/messages")
    form = page.get_by_role("form", name="By key")
    form.get_by_label("Topic").fill(TOPIC)
    form.get_by_label("Key").fill(KEY)
    form.get_by_label("Key").press("Enter")
    page.wait_for_timeout(SETTLING_MS)
    save(page, folder / "messages.png")


def take_reset(page: Page, stage: Stage, folder: Path) -> None:
    """Its preview, and the audit log after it was made."""
    page.goto(f"{stage.cluster.admin}/#/groups/{GROUP}")
    page.get_by_role("button", name="Reset offsets…").click()
    page.get_by_label("Topic").select_option(TOPIC)
    page.get_by_label("Go on at").select_option("earliest")
    page.get_by_role("button", name="Show what happens").click()
    page.get_by_text("What will happen").wait_for()
    save(page, folder / "reset.png")
    page.get_by_role("button", name="Reset", exact=True).click()
    page.get_by_role("button", name="Close").click()
    page.goto(f"{stage.cluster.admin}/#/audit")
    page.wait_for_timeout(SETTLING_MS)
    save(page, folder / "audit.png")


def take_failure(browser: Browser, stage: Stage, folder: Path) -> None:
    """A killed leader, in the dark and on a phone."""
    dark, phone = open_page(browser, SIZE, is_dark=True), open_page(browser, PHONE)
    dark.goto(f"{stage.cluster.admin}/#/cluster")
    phone.goto(f"{stage.cluster.admin}/#/cluster")
    dead = stage.cluster.wait_leader()
    stage.cluster.kill(dead)
    dark.locator(f'.node[data-key="{dead}"][data-role="DOWN"]').wait_for()
    dark.wait_for_timeout(4 * SETTLING_MS)
    save(dark, folder / "cluster-node-down.png")
    save(phone, folder / "phone.png")


def main() -> int:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    program = next(filter(None, map(shutil.which, NAMES)))
    with tempfile.TemporaryDirectory() as data:
        cluster = Cluster(Path(data))
        try:
            cluster.start(keeping_users(Path(data)), admin=True)
            stage = set_up(cluster)
            work = write_some(cluster.namesrv, WRITTEN_FOR_S)
            writer = threading.Thread(target=asyncio.run, args=(work,))
            writer.start()
            time.sleep(WRITTEN_FOR_S * 0.8)
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
                page = open_page(browser, SIZE)
                take_views(page, stage, folder)
                take_finder(page, stage, folder)
                writer.join()
                take_reset(page, stage, folder)
                take_failure(browser, stage, folder)
                browser.close()
        finally:
            cluster.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
