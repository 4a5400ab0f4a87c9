"""The members of a group on the cluster's page, over brokers without a network whose leader plans as a
real one does.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Generic, TypeVar

import pytest
from playwright.sync_api import Page, expect

from admin_api.app import create_app
from admin_api.http_server import Server, server_config
from admin_api.settings import Settings
from broker.admin.types import GroupProgress, PeerView, TopicProgress
from dledger.core.membership import Member, MemberRole
from tests.browser.conftest import OpenPage
from tests.browser.faults import axe_faults
from tests.unit.admin_api.fake_brokers import NAMESRV, FakeBrokers
from tests.unit.admin_api.test_draining import FakeGroups
from tests.unit.admin_api.test_member_changes import ChangingGroup
from tests.unit.admin_api.test_replication import GROUP

START_LIMIT_S = 30


B = TypeVar("B", bound=FakeBrokers)


class Service(Generic[B]):
    """An admin service over these brokers, on a loop and a thread of its own."""

    def __init__(self, brokers: B, namesrv: str = NAMESRV) -> None:
        self.brokers = brokers
        self._namesrv = namesrv
        self.origin = ""
        self._server: Server | None = None
        self._is_started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def start(self) -> None:
        self._thread.start()
        assert self._is_started.wait(START_LIMIT_S)

    def stop(self) -> None:
        assert self._server is not None
        self._server.should_exit = True
        self._thread.join(START_LIMIT_S)

    async def _serve(self) -> None:
        settings = Settings(namesrv=self._namesrv, cache_ms=0, brokers_cache_ms=0)
        app = create_app(settings, self.brokers)
        config = server_config(app, settings, 16, host="127.0.0.1", port=0, lifespan="on")
        listener = config.bind_socket()
        self.origin = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self._server = Server(config, app)
        running = asyncio.ensure_future(self._server.serve([listener]))
        while not self._server.started:
            await asyncio.sleep(0.01)
        self._is_started.set()
        await running


@pytest.fixture
def service() -> Iterator[Service[ChangingGroup]]:
    made = Service(ChangingGroup())
    made.start()
    yield made
    made.stop()


def members_of(page: Page) -> None:
    """Opens the list of the members."""
    page.locator("details.members > summary").click()


def test_a_member_joins_and_shows_how_much_of_the_log_it_has(
    open_page: OpenPage, service: Service[ChangingGroup]
) -> None:
    group = service.brokers
    page = open_page("#/cluster", origin=service.origin)
    summary = page.locator("details.members > summary")
    expect(summary).to_have_text("Members: 3 vote")
    summary.focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Add a member…").focus()
    page.keyboard.press("Enter")
    form = page.get_by_role("dialog", name=f"Add a member to {GROUP}")
    form.get_by_label("Id", exact=True).fill("n3")
    form.get_by_label("Address for replication").fill("127.0.0.1:10944")
    assert axe_faults(page) == []
    page.keyboard.press("Enter")
    preview = page.get_by_role("dialog")
    expect(preview).to_contain_text("n3 at 127.0.0.1:10944 gets the whole log, without a vote.")
    expect(preview).to_contain_text("A group of 4 voters survives no more failures than one of 3.")
    assert group.configuration.member("n3") is None
    preview.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_text("✓ Done.")).to_be_visible()
    page.get_by_role("button", name="Close").click()
    assert group.configuration.member("n3") == Member("n3", "127.0.0.1", 10944, MemberRole.JOINING)

    group.extra = (
        PeerView(
            id="n3",
            replication_address="127.0.0.1:10944",
            is_connected=True,
            push_state="APPEND",
            lag_bytes=700,
            bytes_per_s=100,
        ),
    )
    group.refresh()
    expect(summary).to_have_text("Members: 3 vote, 1 without a vote, n3 joins")
    bar = page.get_by_role("progressbar", name="Log of n3")
    expect(bar).to_have_attribute("value", "300")
    expect(bar).to_have_attribute("max", "1000")
    expect(page.get_by_role("row").filter(has=bar)).to_contain_text("300 B of 1000 B, 100 B/s, 7 s left")
    assert axe_faults(page) == []


def test_what_costs_the_majority_is_typed(open_page: OpenPage, service: Service[ChangingGroup]) -> None:
    group = service.brokers
    group.down.add("n2")
    group.refresh()
    page = open_page("#/cluster", origin=service.origin)
    members_of(page)
    page.get_by_role("button", name="Remove n1").click()
    page.get_by_role("button", name="Show what happens").click()
    expect(page.get_by_role("dialog")).to_contain_text(
        "It would cost the majority: of the 2 voters n0 and n2"
    )
    page.get_by_role("button", name="Close").click()

    page.get_by_role("button", name="Remove n1").click()
    page.get_by_label("Force").check()
    page.get_by_role("button", name="Show what happens").click()
    preview = page.get_by_role("dialog")
    expect(preview).to_contain_text("Forced: of the 2 voters n0 and n2 only n0 keeps up")
    word = preview.get_by_label("Type n1 to confirm")
    word.fill("n2")
    preview.get_by_role("button", name="Remove", exact=True).click()
    expect(preview).to_be_visible()
    assert group.configuration.voters == ("n0", "n1", "n2"), "another word confirms nothing"
    assert axe_faults(page) == []
    word.fill("n1")
    page.keyboard.press("Enter")
    expect(page.get_by_text("✓ Done.")).to_be_visible()
    assert group.configuration.ids == ("n0", "n2")


def test_members_are_replaced_moved_and_lose_their_vote(
    open_page: OpenPage, service: Service[ChangingGroup]
) -> None:
    group = service.brokers
    page = open_page("#/cluster", origin=service.origin)
    members_of(page)

    def confirm(button: str) -> None:
        page.get_by_role("button", name="Show what happens").click()
        page.get_by_role("dialog").get_by_role("button", name=button, exact=True).click()
        expect(page.get_by_text("✓ Done.")).to_be_visible()
        page.get_by_role("button", name="Close").click()

    page.get_by_role("button", name="Take the vote of n2").click()
    confirm("Take its vote")
    assert group.configuration.voters == ("n0", "n1")
    # A change moves the buttons of the page, so what it shows is awaited: a click could miss one.
    expect(page.get_by_role("button", name="Let n2 vote")).to_be_visible()
    page.get_by_role("button", name="Change the address of n2").click()
    page.get_by_label("Address for replication").fill("127.0.0.1:4")
    confirm("Change")
    expect(page.get_by_text("127.0.0.1:4", exact=True)).to_be_visible()
    page.get_by_role("button", name="Let n2 vote").click()
    confirm("Let it vote")
    assert group.configuration.member("n2") == Member("n2", "127.0.0.1", 4, MemberRole.JOINING)
    expect(page.get_by_role("button", name="Let n2 vote")).to_have_count(0)
    page.get_by_role("button", name="Remove n2").click()
    confirm("Remove")
    expect(page.get_by_role("button", name="Remove n2")).to_have_count(0)
    page.get_by_role("button", name="Replace n1").click()
    page.get_by_label("Id", exact=True).fill("n3")
    page.get_by_label("Address for replication").fill("127.0.0.1:5")
    confirm("Replace")
    assert group.configuration.member("n3") == Member("n3", "127.0.0.1", 5, MemberRole.JOINING, "n1")


def test_fixed_members_name_the_command_that_lets_them_change(open_page: OpenPage) -> None:
    service = Service(ChangingGroup(level=2))
    service.start()
    try:
        page = open_page("#/cluster", origin=service.origin)
        expect(page.locator("details.members > summary")).to_have_text(
            "Members: 3 vote, fixed by dLegerPeers"
        )
        members_of(page)
        expect(page.get_by_text("Members can change after ledgermq upgrade-finish.")).to_be_visible()
        expect(page.get_by_role("button", name="Add a member…")).to_have_count(0)
    finally:
        service.stop()


def test_a_group_is_drained_and_what_is_left_in_it_is_shown(open_page: OpenPage) -> None:
    brokers = FakeGroups()
    brokers.consumers = {"billing": GroupProgress(topics={"orders": TopicProgress(lag=3)})}
    service = Service(brokers)
    service.start()
    try:
        page = open_page("#/cluster", origin=service.origin)
        group = page.locator("section.group", has=page.get_by_role("heading", name="broker-b", exact=True))
        group.get_by_role("button", name="Drain…").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("order across the change is lost")
        dialog.get_by_role("button", name="Drain", exact=True).click()
        expect(page.get_by_text("✓ Done.")).to_be_visible()
        page.get_by_role("button", name="Close").click()
        expect(group.locator(".verdict")).to_contain_text("accepts no messages")
        group.get_by_role("button", name="What is left…").click()
        expect(dialog).to_contain_text("have not consumed everything: billing")
        expect(dialog.get_by_role("row", name="billing orders 3")).to_be_visible()
        assert axe_faults(page) == []
    finally:
        service.stop()
