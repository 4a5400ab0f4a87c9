"""What an operator does all day, by the page: each change is read before it is made."""

from __future__ import annotations

import json
import re

import httpx
from playwright.sync_api import expect

from tests.browser.conftest import OpenPage
from tests.browser.stage import BODY, CONSUMED, DEAD, GROUP, KEY, MESSAGES, QUEUES, TOPIC, Stage


def offsets(stage: Stage) -> set[int]:
    """Where the group is, in every queue of the topic."""
    answer = httpx.get(f"{stage.cluster.admin}/api/v1/consumer-groups/{GROUP}/progress", timeout=10).json()
    (topic,) = [topic for topic in answer["topics"] if topic["topic"] == TOPIC]
    return {queue["offset"] for queue in topic["queues"]}


def test_an_offset_is_reset_after_its_preview_was_read(open_page: OpenPage, stage: Stage) -> None:
    page = open_page("#/groups")
    row = page.get_by_role("row").filter(has_text=GROUP)
    expect(row.get_by_role("cell").nth(1)).to_have_text(str(MESSAGES - QUEUES * CONSUMED))
    page.get_by_role("link", name=GROUP, exact=True).click()
    expect(page.get_by_role("heading", name=f"Group {GROUP}")).to_be_focused()

    page.get_by_role("button", name="Reset offsets…").click()
    page.get_by_label("Topic").select_option(TOPIC)
    page.get_by_label("Go on at").select_option("earliest")
    page.get_by_role("button", name="Show what happens").click()
    preview = page.get_by_role("dialog", name=f"Reset the offsets of {GROUP}")
    expect(preview.locator("tbody tr")).to_have_count(QUEUES)
    expect(preview.locator("tbody tr").first).to_contain_text(str(CONSUMED))
    assert offsets(stage) == {CONSUMED}, "a preview changes nothing"

    preview.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert offsets(stage) == {CONSUMED}

    page.get_by_role("button", name="Reset offsets…").click()
    page.get_by_label("Topic").select_option(TOPIC)
    page.get_by_label("Go on at").select_option("earliest")
    page.get_by_role("button", name="Show what happens").click()
    page.get_by_role("button", name="Reset", exact=True).click()
    expect(page.get_by_text("✓ Done.")).to_be_visible()
    page.get_by_role("button", name="Close").click()
    assert offsets(stage) == {0}
    expect(page.locator("details.topic").first).to_contain_text(f"lag {MESSAGES}")

    page.goto(f"{stage.cluster.admin}/#/audit")
    expect(page.get_by_role("row").filter(has_text="offset.reset").first).to_contain_text("✓ done")


def test_a_situation_that_changed_is_previewed_again(open_page: OpenPage, stage: Stage) -> None:
    page = open_page(f"#/groups/{GROUP}")
    page.get_by_role("button", name="Skip what has accumulated…").click()
    page.get_by_label("Topic").select_option(TOPIC)
    page.get_by_role("button", name="Show what happens").click()
    expect(page.get_by_text("What will happen")).to_be_visible()
    grown = httpx.patch(
        f"{stage.cluster.admin}/api/v1/topics/{TOPIC}",
        params={"dryRun": False},
        json={"readQueues": QUEUES + 1, "writeQueues": QUEUES + 1},
        timeout=10,
    )
    assert grown.status_code == 200, grown.text
    page.get_by_role("button", name="Skip", exact=True).click()
    expect(page.get_by_text("The situation changed since you looked")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_message_is_found_by_its_key_and_read(open_page: OpenPage) -> None:
    page = open_page("#/messages")
    form = page.get_by_role("form", name="By key")
    form.get_by_label("Topic").fill(TOPIC)
    form.get_by_label("Key").fill(KEY)
    form.get_by_label("Key").press("Enter")
    found = page.get_by_role("row").filter(has_text=KEY)
    expect(found).to_have_count(1)
    found.get_by_role("link").click()
    body = page.locator("pre.body")
    expect(body).to_contain_text("naïve ☕ 你好")
    assert json.loads(body.inner_text()) == json.loads(BODY)
    page.get_by_label("Shown as").select_option("hex")
    expect(body).to_contain_text(BODY.encode().hex())
    expect(page.get_by_role("row").filter(has_text=GROUP)).to_be_visible()


def test_a_dead_letter_is_sent_again(open_page: OpenPage, stage: Stage) -> None:
    page = open_page("#/dlq")
    row = page.get_by_role("row").filter(has_text=GROUP)
    expect(row.get_by_role("cell").nth(1)).to_have_text(str(DEAD))
    row.get_by_role("link").click()
    letters = page.locator("tbody tr")
    expect(letters).to_have_count(DEAD)
    expect(page.get_by_role("button", name="Send the chosen again…")).to_be_disabled()
    letters.filter(has_text=stage.dead_keys[1]).get_by_role("checkbox").check()
    page.get_by_role("button", name="Send 1 again…").click()
    page.get_by_role("button", name="Show what happens").click()
    expect(page.get_by_text("What will happen")).to_be_visible()
    page.get_by_role("button", name="Send again", exact=True).click()
    expect(page.get_by_text("✓ Done.")).to_be_visible()
    page.get_by_role("button", name="Close").click()

    with page.expect_download() as saved:
        page.get_by_role("button", name="Save as JSON lines").click()
    assert saved.value.path().read_text().count("\n") == DEAD


def test_a_topic_is_made_edited_and_deleted(open_page: OpenPage) -> None:
    page = open_page("#/topics")
    page.get_by_role("button", name="New topic…").click()
    page.get_by_label("Name", exact=True).fill("Parcels")
    page.get_by_label("Queues to write").fill("4")
    page.get_by_role("button", name="Show what happens").click()
    page.get_by_role("button", name="Create", exact=True).click()
    page.get_by_role("button", name="Close").click()
    page.get_by_label("Name contains").fill("parcel")
    page.get_by_role("link", name="Parcels").click()
    expect(page.locator("tbody tr").first).to_contain_text("8 / 4")

    page.get_by_role("button", name="Delete…").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("button", name="Close").click()
    expect(page.get_by_role("heading", name="Topics")).to_be_visible()


def test_what_does_not_exist_is_said_in_a_sentence(open_page: OpenPage) -> None:
    page = open_page("#/groups/nobody-has-it")
    expect(page.locator(".notice")).to_contain_text("nobody-has-it")


def test_the_last_hour_is_plotted(open_page: OpenPage) -> None:
    page = open_page("#/cluster")
    plots = page.locator(".plot:visible")
    expect(plots).to_have_count(3)
    expect(plots.first.locator("canvas")).to_be_visible()
    expect(plots.first.locator(".canvas")).to_have_attribute(
        "aria-label", re.compile(r"Messages a second over the last hour; now written [\d.]+, consumed [\d.]+")
    )
