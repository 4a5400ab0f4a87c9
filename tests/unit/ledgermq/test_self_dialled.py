"""The command line does not take a connection to itself for the server that it asks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ledgermq.api_client import ApiClient
from ledgermq.errors import UserError
from ledgermq.load.frames import Pipe
from ledgermq.local.cluster import LocalCluster
from ledgermq.local.plan import ClusterPlan
from tests.support.self_dialled import (
    HOST,
    SelfDialler,
    assert_can_be_listened_on,
    dial_from_same_port,
    free_port,
)


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    found = free_port()
    dial_from_same_port(monkeypatch, found)
    return found


def test_load_is_sent_to_nobody(port: int) -> None:
    with pytest.raises(ConnectionRefusedError):
        Pipe((HOST, port), {})
    assert_can_be_listened_on(port)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_admin_service_that_is_not_there_gives_no_answer(port: int, scheme: str) -> None:
    with pytest.raises(UserError, match="gives no answer: Connection refused"):
        ApiClient(f"{scheme}://{HOST}:{port}").call("GET", "/cluster")
    assert_can_be_listened_on(port)


async def test_up_does_not_believe_that_a_name_server_which_ended_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, port = LocalCluster(ClusterPlan(tmp_path), restart=False, say=lambda line: None), free_port()
    SelfDialler(monkeypatch)
    with pytest.raises(UserError, match="namesrv did not start"):
        await cluster._wait_for_port("namesrv", port)
    await asyncio.sleep(0)  # an aborted transport closes its socket in the next turn
    assert_can_be_listened_on(port)
