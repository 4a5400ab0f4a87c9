"""No single request, from anybody, holds an event loop for more than 20 ms of CPU time.

Elsewhere no test asserts a timing. This one does, because it is the requirement: see `held/fuzzing.py` for
what makes it a statement about work. `python -m tests.fuzz.held` runs it for longer, and shows what took the
time.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from broker.admin.feature import REASONS
from remoting.command import RemotingCommand, success_response
from remoting.connection import Connection
from remoting.router import Router
from remoting.server import RemotingServer
from remoting.tls import ServerTlsSettings
from tests.fuzz.held.content import as_in_production, broker_thread, name_server_thread
from tests.fuzz.held.fuzzing import BOUND_MS, Meter, fuzz
from tests.fuzz.held.measured import Peer, ServerThread, reference_ms
from tests.fuzz.held.samples import BROKER_SAMPLES, NAME_SERVER_SAMPLES, Sample
from tests.fuzz.held.strangers import greetings, handshakes, held_ms
from tests.support.certificates import TlsPlace
from tests.support.long_runs import is_long_run
from tests.support.new_seeds import first_new_seed

SECONDS = 300.0 if is_long_run() else 10.0
CODE = 7


def test_every_code_of_a_broker_has_a_request(tmp_path: Path) -> None:
    with broker_thread(tmp_path) as server:
        assert server.codes - REASONS.keys() <= {sample.code for sample in BROKER_SAMPLES}


def test_every_code_of_a_name_server_has_a_request() -> None:
    with name_server_thread() as server:
        assert server.codes == {sample.code for sample in NAME_SERVER_SAMPLES}


def test_no_request_holds_the_loop() -> None:
    found = fuzz(SECONDS, first_new_seed() if is_long_run() else 1)
    assert not found, "\n".join(map(str, found))


def test_no_stranger_at_a_replication_port_holds_the_loop(tmp_path: Path) -> None:
    with broker_thread(tmp_path) as server, as_in_production():
        held = {name: held_ms(server, server.replication_port, data) for name, data in greetings().items()}
    assert max(held.values()) <= BOUND_MS, held


def test_no_stranger_at_a_port_with_tls_holds_the_loop(tmp_path: Path) -> None:
    files = TlsPlace(tmp_path).files("server")
    settings = ServerTlsSettings("enforcing", files.certificate, files.key)
    with name_server_thread(settings) as server, as_in_production():
        held = {name: held_ms(server, server.port, data) for name, data in handshakes().items()}
    assert max(held.values()) <= BOUND_MS, held


@pytest.mark.parametrize(("references", "is_found"), [(0, False), (5, True)])
def test_a_handler_that_works_too_long_is_found(references: int, is_found: bool) -> None:
    """One that works for about 150 ms."""

    def handle(request: RemotingCommand, connection: Connection) -> RemotingCommand:
        for _ in range(references):
            reference_ms()
        return success_response(request)

    async def start() -> tuple[int, Callable[[], Awaitable[None]]]:
        router = Router()
        router.register(CODE, handle)
        server = RemotingServer(router, "127.0.0.1", 0)
        await server.start()
        await asyncio.sleep(0)
        return server.port, server.stop

    with ServerThread(start) as server:
        peer = Peer(server.port)
        excess = Meter(server, peer).check(Sample(CODE))
        peer.close()
    assert (excess is not None) is is_found
    assert excess is None or excess.held_ms > BOUND_MS
