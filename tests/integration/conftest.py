"""Fixtures of the integration tests: one cluster for all tests that do not break it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator

import pytest

from tests.integration.cluster import Cluster
from tests.support.measures import MEASURED

Measured = Callable[[str, object], None]
RETRY_SOON = {"messageDelayLevel": "1s 2s 3s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"}
"""Of clusters whose clients fail on purpose: the first retry comes after level 3, by default ten seconds."""


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A running three-node cluster with a writable leader, shared: tests must leave it as they found it."""
    running = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        running.start(RETRY_SOON, admin=True)
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="session")
def namesrv(request: pytest.FixtureRequest) -> str:
    """The name server for client tests; LEDGERMQ_TEST_NAMESRV names another cluster's, to compare with."""
    given = os.environ.get("LEDGERMQ_TEST_NAMESRV")
    if given:
        return given
    running: Cluster = request.getfixturevalue("cluster")
    return running.namesrv


@pytest.fixture(scope="module")
def name() -> str:
    """A suffix that makes the module's topics and groups its own, also on a cluster that lives on."""
    return secrets.token_hex(4)


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Measured:
    """Takes a figure (what, how much) that is shown at the end of the run and never asserted."""
    return lambda what, value: request.node.user_properties.append((MEASURED, f"{what}: {value}"))
