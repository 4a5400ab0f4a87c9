"""The page by keyboard, on a phone, in the dark, and for those who hear it."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import PHONE, OpenPage
from tests.browser.faults import FAULTS, LOW_CONTRAST, axe_faults
from tests.browser.stage import GROUP, TOPIC, Stage
from tests.support.long_runs import is_long_run

VIEWS = (
    "cluster",
    "topics",
    f"topics/{TOPIC}",
    "groups",
    f"groups/{GROUP}",
    "messages",
    "dlq",
    f"dlq/{GROUP}",
)
COLOURS = ("color-contrast", "link-in-text-block")
"""The rules of axe that may find something else in the dark."""
KEEP_SOME = """
() => [...document.querySelectorAll(".operation")].forEach((each, at) => { if (at % 8 !== 0) each.remove(); })
"""
"""One function makes all operations of the description: 30,000 elements, as much for axe as all views."""
MORE_VIEWS = ("nodes", "node", "message", "access", "access/root", "audit", "doctor")


def addresses(stage: Stage, page: Page) -> list[str]:
    """Every view, one of each kind."""
    node = stage.cluster.address("n0")
    found = page.request.get(f"{stage.cluster.admin}/api/v1/messages?topic={TOPIC}&key=order-7").json()[
        "items"
    ][0]
    named = {"node": f"nodes/{node}", "message": f"messages/{found['id']}?topic={TOPIC}"}
    return [f"#/{named.get(view, view)}" for view in (*VIEWS, *MORE_VIEWS)]


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_every_view_is_labelled_readable_and_fits_a_phone(
    open_page: OpenPage, stage: Stage, is_dark: bool
) -> None:
    page = open_page("#/cluster", PHONE, is_dark=is_dark)
    found: dict[str, object] = {}
    for address in addresses(stage, page):
        page.evaluate("address => { location.hash = address }", address)
        expect(page.locator("h1")).to_be_visible()
        page.wait_for_timeout(300)
        width = page.evaluate("document.documentElement.scrollWidth")
        faults = page.evaluate(FAULTS) + page.evaluate(LOW_CONTRAST)
        if width > PHONE[0] or faults:
            found[address] = (width, faults)
    assert found == {}


def test_every_column_of_the_nodes_fits_a_small_window(open_page: OpenPage) -> None:
    page = open_page("#/nodes", (1100, 820))
    expect(page.get_by_role("columnheader", name="Started")).to_be_visible()
    hidden = page.evaluate(
        "(box => box.scrollWidth - box.clientWidth)(document.querySelector('main .scroll-x'))"
    )
    assert hidden == 0


@pytest.mark.parametrize(
    "is_dark", [pytest.param(False, id="light"), pytest.param(True, id="dark", marks=pytest.mark.long)]
)
def test_axe_finds_nothing_grave(open_page: OpenPage, stage: Stage, is_dark: bool) -> None:
    page = open_page("#/cluster", is_dark=is_dark)
    rules = COLOURS if is_dark else ()
    found: dict[str, list[str]] = {}
    for address in addresses(stage, page):
        page.evaluate("address => { location.hash = address }", address)
        expect(page.locator("h1")).to_be_visible()
        page.wait_for_timeout(300)
        found[address] = axe_faults(page, rules)
    page.goto(f"{stage.cluster.admin}/#/groups/{GROUP}")
    page.get_by_role("button", name="Reset offsets…").click()
    found["a form in a dialog"] = axe_faults(page, rules)
    page.get_by_role("button", name="Show what happens").click()
    expect(page.get_by_text("What will happen")).to_be_visible()
    found["a preview"] = axe_faults(page, rules)
    page.goto(f"{stage.cluster.admin}/docs")
    expect(page.locator(".operation").first).to_be_visible()
    if not is_long_run():
        page.evaluate(KEEP_SOME)
    found["the description"] = axe_faults(page, rules)
    assert {address: faults for address, faults in found.items() if faults} == {}


def test_everything_is_reached_by_the_keyboard(open_page: OpenPage) -> None:
    page = open_page("#/cluster")
    expect(page.locator(".node").first).to_be_visible()
    page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to the content")
    expect(skip).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()

    tab_to(page, "#views a", "Groups", is_back=True)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Consumer groups")).to_be_focused()
    expect(page.get_by_role("link", name=GROUP, exact=True)).to_be_visible()
    tab_to(page, "a", GROUP)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=f"Group {GROUP}")).to_be_focused()
    expect(page.locator("details.topic").first).to_be_visible()

    tab_to(page, "button", "Reset offsets…")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Topic")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("button", name="Reset offsets…")).to_be_focused()

    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.type("the first")
    page.keyboard.press("Tab")
    tab_to(page, "button", "Show what happens")
    page.keyboard.press("Enter")
    expect(page.get_by_text("What will happen")).to_be_visible()
    expect(page.get_by_role("button", name="Cancel")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_have_count(0)


def tab_to(page: Page, selector: str, text: str, *, is_back: bool = False) -> None:
    """Press Tab till what has the text is focused; it must show so."""
    for _ in range(60):
        page.keyboard.press("Shift+Tab" if is_back else "Tab")
        at = page.evaluate(
            "selector => document.activeElement.matches(selector) ? document.activeElement.textContent : ''",
            selector,
        )
        if at == text:
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline != "none", f"nothing shows that {text} is focused"
            return
    raise AssertionError(f"60 tabs do not lead to {text}")
