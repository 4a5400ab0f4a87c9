"""The cluster's page, watched while a leader is killed."""

from __future__ import annotations

import socket
import time

from playwright.sync_api import Page, expect

from remoting.codes import RequestCode
from remoting.headers.namesrv import GRPC_ENDPOINTS
from tests.browser.conftest import WAIT_MS, OpenPage
from tests.browser.stage import Stage
from tests.browser.test_members import Service
from tests.integration.conftest import Measured
from tests.integration.wire import call
from tests.unit.admin_api.fake_brokers import NAMESRV
from tests.unit.admin_api.test_grpc_clients import client
from tests.unit.admin_api.test_name_servers import BOTH, OTHER, FakeNameServers


def card(page: Page, node_id: str) -> str:
    return f'.node[data-key="{node_id}"]'


def test_a_killed_leader_is_shown_as_down_and_another_as_leading(
    open_page: OpenPage, stage: Stage, measured: Measured
) -> None:
    cluster = stage.cluster
    page = open_page("")
    dead = cluster.wait_leader()
    expect(page.locator(card(page, dead))).to_have_attribute("data-role", "LEADER")
    expect(page.locator(".verdict")).to_contain_text("3 of 3 nodes up")

    killed_s = time.monotonic()
    cluster.kill(dead)
    try:
        new_leader = page.locator(f'.node[data-role="LEADER"]:not([data-key="{dead}"])')
        expect(new_leader).to_have_count(1, timeout=WAIT_MS)
        measured("a new leader is on the page after kill -9", f"{time.monotonic() - killed_s:.2f} s")
        expect(page.locator(card(page, dead))).to_have_attribute("data-role", "DOWN")
        measured("the dead node is shown as down after", f"{time.monotonic() - killed_s:.2f} s")

        expect(page.locator(card(page, dead))).to_contain_text("cannot be reached")
        expect(page.locator(card(page, dead))).to_contain_text("Last seen")
        expect(page.locator(".verdict")).to_contain_text("2 of 3 nodes up")
        expect(page.locator(".elections tbody tr").first).to_contain_text(
            new_leader.get_attribute("data-key") or ""
        )
        expect(page.locator("#news")).to_contain_text(f"{dead} is down")
        term = page.locator(card(page, dead)).locator("dt", has_text="Term").locator("xpath=../dd")
        expect(term).to_have_text("unknown")

        page.goto(f"{cluster.admin}/#/nodes")
        row = page.locator("tr", has_text=cluster.address(dead))
        expect(row).to_contain_text("✕ down")
        expect(row.locator("td").nth(6)).to_have_text("unknown")
    finally:
        cluster.restart(dead)
    page.goto(f"{cluster.admin}/#/cluster")
    expect(page.locator(card(page, dead))).to_have_attribute("data-role", "FOLLOWER", timeout=30_000)


def test_a_silent_admin_process_is_not_shown_as_live(open_page: OpenPage, stage: Stage) -> None:
    page = open_page("#/cluster")
    live = page.locator("#live")
    expect(live).to_have_attribute("data-state", "live")
    admin = stage.cluster.processes()["admin_api"]
    admin.suspend()
    try:
        expect(live).to_have_attribute("data-state", "stale")
        expect(live).to_contain_text("no news for")
    finally:
        admin.resume()
    expect(live).to_have_attribute("data-state", "live")


def test_the_clients_of_an_endpoint_are_listed(open_page: OpenPage, stage: Stage) -> None:
    namesrv = stage.cluster.namesrv
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        place = {"namespace": GRPC_ENDPOINTS, "key": address}
        call(namesrv, RequestCode.PUT_KV_CONFIG, place | {"value": str(time.time_ns() // 1_000_000)})
        try:
            page = open_page("#/cluster")
            button = page.locator(".namesrv", has_text=f"gRPC endpoint {address}").get_by_role("button")
            dialog = page.get_by_role("dialog", name=f"Clients of the gRPC endpoint {address}")
            button.click()
            expect(dialog).to_contain_text("is connected to the brokers")
            page.keyboard.press("Escape")
            found = {"items": [client(1, clientId="<b>one</b>", namespace="")], "total": 2}
            page.route("**/grpc-endpoints/**", lambda route: route.fulfill(json=found))
            button.click()
            expect(dialog).to_contain_text("2 clients, of which these 1 came first")
            expect(dialog.locator("tbody tr")).to_contain_text("<b>one</b>")
            expect(dialog.locator("tbody tr")).to_contain_text("JAVA 5.2.0")
        finally:
            call(namesrv, RequestCode.DELETE_KV_CONFIG, place)


def test_each_name_server_is_shown(open_page: OpenPage) -> None:
    servers = FakeNameServers()
    servers.unlisted[OTHER] = {"127.0.0.1:10921"}
    service = Service(servers, BOTH)
    service.start()
    try:
        lines = open_page("#/cluster", origin=service.origin).locator(".namesrv")
        lacking = f"Name server {OTHER}, which does not list 127.0.0.1:10921"
        expect(lines).to_have_text([f"Name server {NAMESRV}", lacking])
        servers.dead.add(NAMESRV)
        gone = f"⚠ The name server gives no answer ({NAMESRV} cannot be reached). Others are asked."
        expect(lines).to_have_text([gone, f"Name server {OTHER}"])
        servers.dead.add(OTHER)
        expect(lines.first).to_contain_text("The nodes known before are asked directly.")
    finally:
        service.stop()
