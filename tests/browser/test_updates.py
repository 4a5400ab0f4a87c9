"""What a person is doing on a page stays as it is while the page is updated."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Page, Route, expect

from tests.browser.conftest import OpenPage
from tests.browser.stage import GROUP, TOPIC, Stage
from tests.browser.test_waiting_views import STEP_MS, until_there_is_one

GROUPS = 40
QUEUES = 3000
UPDATES = 2
UPDATE_MS_MAX = 1000
"""For thousands of rows, on a slow machine; typing stays possible."""


def answered(page: Page, pattern: str, answer: Callable[[int], object]) -> list[Route]:
    """Answers in place of the service, each time with another number; gives what was asked."""
    asked: list[Route] = []

    def fulfil(route: Route) -> None:
        asked.append(route)
        route.fulfill(json=answer(len(asked)))

    page.route(pattern, fulfil)
    return asked


def updates(page: Page, asked: list[Route]) -> None:
    """Till the page was updated some times."""
    for _ in range(UPDATES):
        asked.clear()
        until_there_is_one(page, asked)
    page.wait_for_timeout(10 * STEP_MS)


def shuffled_groups(number: int) -> object:
    """Each time in another order."""
    names = [f"group-{(place * 7 + number * 13) % GROUPS:02}" for place in range(GROUPS)]
    state = {"members": 1, "presence": "online", "messageModel": None, "consumeTps": 1}
    known = {**state, "consumeEnabled": True, "isLagPartial": False}
    items = [{"group": name, "lag": lag, **known} for lag, name in enumerate(names)]
    return {"items": items, "page": 1, "pageSize": 100, "total": GROUPS, "isPartial": False, "problems": []}


def test_a_row_that_moves_keeps_the_focus_and_a_filter_its_text(open_page: OpenPage, stage: Stage) -> None:
    page = open_page("#/audit")
    asked = answered(page, "**/api/v1/consumer-groups?*", shuffled_groups)
    page.goto(f"{stage.cluster.admin}/#/groups")
    link = page.get_by_role("link", name="group-17", exact=True)
    link.focus()
    updates(page, asked)
    expect(link).to_be_focused()
    filter_ = page.get_by_label("Name contains")
    filter_.press_sequentially("gro")
    updates(page, asked)
    expect(filter_).to_be_focused()
    filter_.press_sequentially("up")
    expect(filter_).to_have_value("group")


def test_a_form_and_what_was_folded_outlive_an_update(open_page: OpenPage) -> None:
    page = open_page(f"#/groups/{GROUP}")
    part = page.locator("details.topic").first
    part.locator("summary").click()
    page.get_by_role("button", name="Clone offsets…").click()
    field = page.get_by_label("Group that gets them")
    field.fill("half of a na")
    with page.expect_response("**/progress"):
        page.wait_for_timeout(STEP_MS)
    page.wait_for_timeout(10 * STEP_MS)
    expect(field).to_have_value("half of a na")
    expect(field).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Clone offsets…")).to_be_focused()
    assert part.evaluate("part => part.open") is False


def many_queues(number: int) -> object:
    def queue(queue_id: int) -> dict[str, object]:
        written = queue_id + (number if queue_id % 7 == 0 else 0)
        offsets = {"minOffset": 0, "maxOffset": written, "messageCount": written, "lastMessageAtMs": 1}
        return {"brokerName": "broker-a", "queueId": queue_id, **offsets}

    return {"queues": [queue(queue_id) for queue_id in range(QUEUES)], "isPartial": False, "problems": []}


def test_thousands_of_rows_are_updated_in_a_moment(open_page: OpenPage, stage: Stage) -> None:
    page = open_page("#/audit")
    asked = answered(page, f"**/api/v1/topics/{TOPIC}/queues", many_queues)
    page.goto(f"{stage.cluster.admin}/#/topics/{TOPIC}")
    expect(page.get_by_text(f"broker-a/{QUEUES - 1}", exact=True)).to_be_attached()
    page.evaluate(
        """() => {
          window.longest = 0;
          const look = (list) => list.getEntries().forEach(({ duration }) => {
            window.longest = Math.max(window.longest, duration);
          });
          new PerformanceObserver(look).observe({ type: "longtask" });
        }"""
    )
    updates(page, asked)
    assert page.evaluate("longest") < UPDATE_MS_MAX
