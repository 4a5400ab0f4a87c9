"""Users and their policies by the page: a password that is typed is shown nowhere."""

from __future__ import annotations

import httpx
from playwright.sync_api import Page, expect

from tests.browser.conftest import PHONE, OpenPage
from tests.browser.faults import FAULTS, LOW_CONTRAST
from tests.browser.stage import Stage

PASSWORD = " tea and Biscuits"
CALLED = "shop/7 ☕"


def confirm(page: Page, verb: str) -> None:
    """Read the preview, do it, and read what came of it."""
    page.get_by_role("button", name="Show what happens").click()
    expect(page.get_by_text("What will happen")).to_be_visible()
    page.get_by_role("button", name=verb, exact=True).click()
    expect(page.get_by_text("✓ Done.")).to_be_visible()
    page.get_by_role("button", name="Close").click()
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_user_gets_a_policy_and_goes(open_page: OpenPage, stage: Stage) -> None:
    page = open_page("#/access")
    expect(page.get_by_role("row").filter(has_text="broker-a").first).to_contain_text("nothing")
    page.get_by_role("button", name="New user…").click()
    page.get_by_label("Name", exact=True).fill(CALLED)
    page.get_by_label("Password", exact=True).fill(PASSWORD)
    page.get_by_label("The same again").fill(PASSWORD.strip())
    page.get_by_role("button", name="Show what happens").click()
    expect(page.get_by_label("The same again")).to_be_focused()
    expect(page.get_by_text("What will happen")).to_have_count(0)
    page.get_by_label("The same again").fill(PASSWORD)
    confirm(page, "Create")

    page.get_by_label("Name contains").fill("SHOP")
    expect(page.get_by_role("table", name="Users").locator("tbody tr")).to_have_count(1)
    page.get_by_role("link", name=CALLED).click()
    expect(page.get_by_role("heading", name=f"User {CALLED}")).to_be_focused()
    page.get_by_role("button", name="New policy…").click()
    page.get_by_label("Resources").fill("Topic:Orders, Group:order*")
    page.get_by_label("From").fill("10.0.0.0/8")
    page.get_by_label("Sub", exact=True).uncheck()
    confirm(page, "Create")
    policy = page.get_by_role("row").filter(has_text="Topic:Orders")
    expect(policy).to_contain_text("Pub")
    expect(policy).to_contain_text("10.0.0.0/8")

    page.get_by_role("button", name="Change the policy about Topic:Orders").click()
    page.get_by_label("Pub", exact=True).uncheck()
    page.get_by_role("button", name="Show what happens").click()
    expect(page.get_by_text("What will happen")).to_have_count(0)
    page.get_by_label("Get", exact=True).check()
    confirm(page, "Change")
    expect(policy).to_contain_text("Get")
    page.get_by_role("button", name="Delete the policy about Group:order*").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("button", name="Close").click()
    expect(page.get_by_role("row").filter(has_text="Group:order*")).to_have_count(0)

    page.get_by_role("button", name="Disable…").click()
    page.get_by_role("button", name="Disable", exact=True).click()
    page.get_by_role("button", name="Close").click()
    expect(page.get_by_text("✕ disabled")).to_be_visible()
    page.get_by_role("button", name="Change password…").click()
    for label in ("Password", "The same again"):
        page.get_by_label(label, exact=True).fill(f"{PASSWORD}2")
    confirm(page, "Change")
    page.get_by_role("button", name="Delete…").and_(page.locator(".bar button")).click()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("button", name="Close").click()
    expect(page.get_by_role("heading", name="Access control")).to_be_visible()

    page.goto(f"{stage.cluster.admin}/#/audit")
    expect(page.get_by_role("row").filter(has_text="user.delete").first).to_contain_text("✓ done")
    audit = (stage.cluster.data / "admin" / "audit.jsonl").read_text(encoding="utf-8")
    assert PASSWORD.strip() not in audit + page.content()


def test_what_a_switch_will_do_is_read_before(open_page: OpenPage, stage: Stage) -> None:
    page = open_page("#/access", PHONE, is_dark=True)
    page.get_by_role("button", name="Switch on or off…").press("Enter")
    page.get_by_label("Clients must sign as a user").press("Space")
    page.keyboard.press("Enter")
    expect(page.get_by_text("broker-a: authenticationEnabled")).to_be_visible()
    expect(page.get_by_text("Requests from here are not signed")).to_be_visible()
    assert page.evaluate(FAULTS) + page.evaluate(LOW_CONTRAST) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    state = httpx.get(f"{stage.cluster.admin}/api/v1/access", timeout=10).json()
    assert [place["mode"] for place in state["places"]] == ["off"]
    page.get_by_role("button", name="New user…").click()
    assert page.evaluate(FAULTS) + page.evaluate(LOW_CONTRAST) == []
