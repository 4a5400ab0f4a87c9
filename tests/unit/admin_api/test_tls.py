"""HTTPS: requests over TLS, clients that do not speak it, and a stop during a handshake."""

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.unit.admin_api.http_serving import GET, LIMIT_S, Served, served, with_limits

pytestmark = [
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate"),
    pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop]),
]
HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
"""How a client's first words begin; hundreds of bytes are to follow."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate and its key."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    made += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True, timeout=30)
    return certificate, key


class Https:
    """The server with that certificate, on a loop of one kind."""

    def __init__(self, make_loop: Any, pair: tuple[Path, Path]) -> None:
        self.make_loop = make_loop
        self._pair = pair
        self.trusting = ssl.create_default_context(cafile=pair[0])

    @asynccontextmanager
    async def served(self, **limits: int) -> AsyncIterator[Served]:
        certificate, key = self._pair
        async with served(with_limits(**limits), ssl_certfile=certificate, ssl_keyfile=key) as there:
            yield there


@pytest.fixture
def https(make_loop: Any, pair: tuple[Path, Path]) -> Https:
    return Https(make_loop, pair)


def run(https: Https, test: Any) -> None:
    with asyncio.Runner(loop_factory=https.make_loop) as runner:
        runner.run(test())


def test_clients_that_leave_or_speak_no_tls_harm_no_other(https: Https) -> None:
    async def test() -> None:
        async with https.served() as there:
            leaving = await there.connect()
            leaving.send(HELLO)
            leaving.writer.close()
            plain = await there.connect()
            plain.send(GET)
            assert await plain.ended()
            assert there.open == 0
            client = await there.connect(tls=https.trusting)
            client.send(GET)
            assert await client.status() == 200

    run(https, test)


def test_requests_are_served_behind_it_also_one_that_comes_with_the_handshake(https: Https) -> None:
    async def test() -> None:
        async with https.served() as there:
            for _ in range(20):
                client = await there.connect(tls=https.trusting)
                for _ in range(2):
                    client.send(GET)
                    assert await client.status() == 200
                client.writer.close()
            at_once = await there.connect()
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            spoken = https.trusting.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
            async with asyncio.timeout(LIMIT_S):
                while True:
                    try:
                        spoken.do_handshake()
                        break
                    except ssl.SSLWantReadError:
                        at_once.send(outgoing.read())
                        incoming.write(await at_once.reader.read(65_536))
                spoken.write(GET)
                at_once.send(outgoing.read())
                answer = b""
                while not answer.startswith(b"HTTP/1.1 200 "):
                    incoming.write(await at_once.reader.read(65_536))
                    try:
                        answer += spoken.read(65_536)
                    except ssl.SSLWantReadError:
                        continue

    run(https, test)


def test_end_of_the_process_waits_for_no_handshake(https: Https) -> None:
    async def test() -> None:
        async with asyncio.timeout(LIMIT_S):
            async with https.served() as there:
                _, writer = await asyncio.open_connection("127.0.0.1", there.port)
                writer.write(HELLO)
                await writer.drain()
            writer.close()

    run(https, test)
