"""Connections to themselves, made certain: the dial is bound to the port that it goes to."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

HOST = "127.0.0.1"


def free_port() -> int:
    """One on which nothing listens."""
    with socket.socket() as there:
        there.bind((HOST, 0))
        return int(there.getsockname()[1])


def self_connected(family: int = socket.AF_INET, host: str = HOST) -> socket.socket:
    """A socket that TCP has connected to itself. It lets no server have its port."""
    made = socket.socket(family)
    made.bind((host, 0))
    made.connect(made.getsockname())
    return made


def dial_from_same_port(patch: pytest.MonkeyPatch, port: int) -> None:
    """From now on blocking dials in this process, whatever they are for, begin at this port."""
    ordinary = socket.create_connection

    def create_connection(address: tuple[str, int], timeout: float, *_: object) -> socket.socket:
        return ordinary(address, timeout, (HOST, port))

    patch.setattr(socket, "create_connection", create_connection)


class SelfDialler:
    """Has the running loop dial from the very port that each dial goes to; `count` says how often it did."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        loop = asyncio.get_running_loop()
        self._dial = loop.create_connection
        patch.setattr(loop, "create_connection", self._create_connection)

    async def _create_connection(self, factory: Any, host: str, port: int, **more: Any) -> Any:
        made = await self._dial(factory, host, port, **more, local_addr=(host, port))
        self.count += 1
        return made


def assert_can_be_listened_on(port: int) -> None:
    """At once: nothing, and no connection that has ended, keeps the port."""
    socket.create_server((HOST, port)).close()
