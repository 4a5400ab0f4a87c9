"""Fixtures for pytest: `ledgermq`, a broker, and `ledgermq_cluster`, three nodes whose failures a test brings
about. Both run for the whole session, and each test has topics of its own (docs/testing_your_code.md).

Every run of pytest loads this module where LedgerMQ is installed: it imports nothing of it before a test asks
for a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ledgermq.local.plan import Scalar
    from ledgermq.testing import RunningBroker, RunningCluster


@pytest.fixture(scope="session")
def ledgermq_settings() -> Mapping[str, Scalar]:
    """Keys of broker.toml for both; a conftest.py may have another fixture of this name."""
    return {}


@pytest.fixture(scope="session")
def _ledgermq_broker(ledgermq_settings: Mapping[str, Scalar]) -> Iterator[RunningBroker]:
    from ledgermq.testing import broker

    with broker(settings=ledgermq_settings) as running:
        yield running


@pytest.fixture(scope="session")
def _ledgermq_nodes(ledgermq_settings: Mapping[str, Scalar]) -> Iterator[RunningCluster]:
    from ledgermq.testing import cluster

    with cluster(settings=ledgermq_settings) as running:
        yield running


@pytest.fixture
def ledgermq(_ledgermq_broker: RunningBroker) -> RunningBroker:
    """A running broker: `ledgermq.namesrv` for clients, `ledgermq.topic("orders")` for a topic that no other
    test has.
    """
    _ledgermq_broker.begin_test()
    return _ledgermq_broker


@pytest.fixture
def ledgermq_cluster(_ledgermq_nodes: RunningCluster) -> RunningCluster:
    """Three running nodes, whatever the test before has done to them, and topics as those of `ledgermq`."""
    _ledgermq_nodes.restore()
    _ledgermq_nodes.begin_test()
    return _ledgermq_nodes
