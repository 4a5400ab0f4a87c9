"""Fixtures of the compatibility suite: one cluster for all of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.compat.stage import Stage


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The running cluster with three nodes. What a test kills is started again after the test."""
    running = Stage(tmp_path_factory.mktemp("compat"))
    try:
        running.start()
        yield running
    finally:
        running.stop()


@pytest.fixture(autouse=True)
def _whole_again(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "stage" in request.fixturenames:
        used: Stage = request.getfixturevalue("stage")
        used.make_whole()
