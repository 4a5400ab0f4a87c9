"""Every operation of the admin interface, called as its own description allows and a little beyond it: no
answer is a fault, and each is one that is described.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn
from hypothesis import HealthCheck, Phase, given, settings

from admin_api.app import create_app
from admin_api.settings import Settings
from tests.integration.cluster import Cluster
from tests.integration.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration
EXAMPLES = 12
"""Of each operation."""
OPERATIONS_MIN = 7
ENDLESS = "/api/v1/cluster/events"


@contextmanager
def serving(namesrv: str) -> Iterator[str]:
    """The address of an admin service for that name server, in a thread, without rate limits."""
    app = create_app(Settings(namesrv=namesrv, costly_burst=10**6))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_for("the admin service", lambda: server.started, 10)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """An admin service of a cluster of one node, which nobody else uses: what is tried may well be done."""
    cluster = Cluster(tmp_path, nodes=1)
    try:
        cluster.start()
        with serving(cluster.namesrv) as address:
            yield address
    finally:
        cluster.stop()


@pytest.mark.filterwarnings("default")
def test_every_operation_answers_as_described(url: str) -> None:
    import schemathesis
    from schemathesis.checks import not_a_server_error
    from schemathesis.core.result import Err
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    checks = [
        not_a_server_error,
        status_code_conformance,
        content_type_conformance,
        response_schema_conformance,
    ]
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    faults: dict[str, str] = {}
    tried = 0
    for found in schema.get_all_operations():
        if isinstance(found, Err):
            raise found.err()
        operation = found.ok()
        if operation.path == ENDLESS:
            continue
        tried += 1

        @settings(
            max_examples=EXAMPLES,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def call(case: Any) -> None:
            answer = case.call(base_url=url, timeout=20, headers={"X-LedgerMQ-Request": "1"})
            case.validate_response(answer, checks=checks)

        try:
            call()
        except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - all are tried, and told together
            faults[operation.label] = "".join(traceback.format_exception_only(error))[:3000]
    assert faults == {}, "\n\n".join(f"{label}: {fault}" for label, fault in faults.items())
    assert tried >= OPERATIONS_MIN
