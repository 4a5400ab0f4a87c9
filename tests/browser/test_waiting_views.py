"""What a view shows before it is answered, when nobody answers, and when one leaves it."""

from __future__ import annotations

import httpx
from playwright.sync_api import Page, Route, expect

from tests.browser.conftest import WAIT_MS, OpenPage
from tests.browser.stage import GROUP, TOPIC, Stage

STEP_MS = 50


def until_there_is_one(page: Page, held: list[Route]) -> None:
    for _ in range(WAIT_MS // STEP_MS):
        if held:
            return
        page.wait_for_timeout(STEP_MS)
    raise AssertionError("the page asked nothing")


def test_a_list_says_that_it_is_read_and_then_that_nobody_could_say(
    open_page: OpenPage, stage: Stage
) -> None:
    page = open_page("#/audit")
    held: list[Route] = []
    page.route("**/api/v1/topics?*", lambda route: held.append(route))
    page.goto(f"{stage.cluster.admin}/#/topics")
    said = page.locator(".table .empty")
    expect(said).to_have_text("Loading…")
    expect(page.locator("thead")).to_be_hidden()
    until_there_is_one(page, held)
    held[0].abort()
    expect(said).to_contain_text("Unknown: the nodes")
    expect(page.locator(".notice")).to_contain_text("The admin process cannot be reached.")


def test_a_view_of_which_nothing_is_answered_says_so(open_page: OpenPage, stage: Stage) -> None:
    page = open_page("#/audit")
    page.route("**/api/v1/topics/**", lambda route: route.abort())
    page.route("**/api/v1/producer-groups?*", lambda route: route.abort())
    page.goto(f"{stage.cluster.admin}/#/topics/{TOPIC}")
    expect(page.locator(".notice")).to_contain_text("Nothing could be read.")
    expect(page.locator(".panel .empty").first).to_contain_text("Unknown: the nodes")


def test_a_group_that_vanishes_while_it_is_looked_at_is_gone(open_page: OpenPage, stage: Stage) -> None:
    """Neither its last figures nor what could be done to it stay, and nobody asks for it any more."""
    path = f"{stage.cluster.admin}/api/v1/consumer-groups/passing"
    made = httpx.put(path, params={"dryRun": False}, json={"retryMaxTimes": 3}, timeout=10)
    assert made.status_code == 200, made.text
    page = open_page("#/groups/passing")
    expect(page.get_by_role("button", name="Reset offsets…")).to_be_visible()
    expect(page.get_by_role("table", name="Settings by broker").locator("tbody tr")).to_have_count(1)
    own = {"X-LedgerMQ-Request": "1"}
    preview = httpx.delete(path, headers=own, timeout=10).json()
    agreed = {"dryRun": False, "confirmation": preview["confirmation"]}
    deleted = httpx.delete(path, params=agreed, headers=own, timeout=10)
    assert deleted.status_code == 200, deleted.text
    expect(page.get_by_text("The group passing is gone: no broker knows it any more.")).to_be_visible()
    expect(page.get_by_role("button", name="Reset offsets…")).to_have_count(0)
    expect(page.get_by_role("table")).to_have_count(0)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.get_by_role("button", name="Look again").click()
    expect(page.get_by_text("There is no group passing.")).to_be_visible()
    page.get_by_role("link", name="All groups").click()
    expect(page.get_by_role("heading", name="Consumer groups")).to_be_visible()
    assert sum("consumer-groups/passing" in url for url in asked) == 2, "it was read once more, in two parts"


def test_a_dialog_is_left_with_its_view(open_page: OpenPage) -> None:
    page = open_page(f"#/groups/{GROUP}")
    page.get_by_role("button", name="Reset offsets…").click()
    expect(page.get_by_role("dialog")).to_have_count(1)
    page.evaluate("location.hash = '#/topics'")
    expect(page.get_by_role("heading", name="Topics")).to_be_visible()
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_every_view_can_be_opened_when_the_admin_process_is_gone(open_page: OpenPage) -> None:
    page = open_page("#/audit")
    loaded = "name => performance.getEntriesByType('resource').some((one) => one.name.endsWith(name))"
    page.wait_for_function(loaded, arg="/pages/health_checks.js")
    page.context.set_offline(True)
    page.get_by_role("link", name="Doctor").click()
    expect(page.get_by_role("heading", name="Doctor")).to_be_visible()
    expect(page.locator(".notice")).to_contain_text("The admin process cannot be reached.")


def test_what_the_doctor_says_to_type_is_set_apart(open_page: OpenPage) -> None:
    page = open_page("#/doctor")
    expect(page.locator(".finding code", has_text=f"ledgermq dlq show {GROUP}")).to_be_visible()
    expect(page.locator("main")).not_to_contain_text("`")


def test_lines_of_the_lag_plot_keep_their_look_whoever_leads(open_page: OpenPage, stage: Stage) -> None:
    page = open_page("#/cluster")
    entries = page.locator(".plot").nth(2).locator("li")
    expect(entries).to_have_count(len(stage.cluster.nodes))
    dashes = entries.locator(".dash").evaluate_all("all => all.map((one) => one.className)")
    assert dashes == [f"dash dash-{place}" for place in range(len(stage.cluster.nodes))]
    leader = stage.cluster.wait_leader()
    expect(entries.filter(has_text=leader).locator("b")).to_have_text("0")


def test_a_view_waits_for_a_service_that_is_asked_too_much(open_page: OpenPage, stage: Stage) -> None:
    page = open_page("#/audit")
    asked: list[str] = []

    def refuse_once(route: Route) -> None:
        asked.append(route.request.url)
        if len(asked) > 1:
            route.continue_()
            return
        problem = '{"title": "Too Many Requests", "detail": "Too many expensive queries."}'
        route.fulfill(
            status=429, headers={"Retry-After": "1"}, content_type="application/problem+json", body=problem
        )

    page.route("**/api/v1/consumer-groups?*", refuse_once)
    page.goto(f"{stage.cluster.admin}/#/groups")
    expect(page.get_by_role("link", name=GROUP, exact=True)).to_be_visible()
    assert asked[0] == asked[1], "the same was asked again"
    expect(page.get_by_text("Too many expensive queries.")).to_have_count(0)
