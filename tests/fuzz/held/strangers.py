"""What a stranger can send to a port before anything is known of him: to a replication port instead of a
Hello, and to a port with TLS instead of a handshake.
"""

import socket
import ssl
import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import msgpack

from dledger.codec import HEADER_BYTES_MAX
from tests.fuzz.held.measured import ServerThread, slowness

MIB: Final = 1 << 20
FRAME_BYTES: Final = 16 * MIB


def greetings() -> Mapping[str, bytes]:
    """Instead of a Hello: by what they are."""
    lists = msgpack.packb([[]] * (HEADER_BYTES_MAX - 10))
    numbers = msgpack.packb({str(at): at for at in range(6_000)})
    return {
        "noise": b"\xff" * MIB,
        "zeros": bytes(FRAME_BYTES),
        "a large frame": struct.pack(">II", FRAME_BYTES, HEADER_BYTES_MAX) + bytes(FRAME_BYTES),
        "a header of lists": struct.pack(">II", len(lists) + 4, len(lists)) + lists,
        "a header of numbers": struct.pack(">II", len(numbers) + 4, len(numbers)) + numbers,
        "headers without end": struct.pack(">II", 4, 0) * 200_000,
        "HTTP": b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 100_000,
    }


def handshakes() -> Mapping[str, bytes]:
    """Instead of a handshake, and its begin."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    stream = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    try:
        stream.do_handshake()
    except ssl.SSLWantReadError:
        hello = outgoing.read()
    record = b"\x16\x03\x01\x40\x00"
    zeros = (record + bytes(0x4000)) * 600
    return {
        "a hello": hello,
        "many hellos": hello * 2_000,
        "records of zeros": zeros,
        "a hello without end": record + b"\x01\xff\xff\xff" + bytes(0x4000 - 4) + zeros,
        "noise behind it": hello + b"\xff" * MIB,
    }


def held_ms(server: ServerThread, port: int, data: bytes) -> float:
    """The longest turn of the server's loop while it gets this from a new connection: the least of four, as
    it would be on the machine that the bound is stated for.
    """
    return min(_once(server, port, data) for _ in range(4)) / slowness()


def _once(server: ServerThread, port: int, data: bytes) -> float:
    server.wait_quiet()
    server.loop.begin()
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 10) as peer:
        peer.settimeout(2)
        peer.sendall(data)
        peer.shutdown(socket.SHUT_WR)
        while peer.recv(1 << 16):
            pass
    server.wait_quiet()
    return server.loop.longest_ms
