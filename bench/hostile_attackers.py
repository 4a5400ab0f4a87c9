"""Hostile clients, each a connection in its own kind: what bench.hostile_load puts on a cluster.

usage: python -m bench.hostile_attackers NAMESRV NODE NODE NODE --connections 100 --seconds 600

They run in a process of their own, so that they do not delay the producer that is measured. Nothing of what
they send is an operator's request.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import struct
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count

from remoting.codes import RequestCode as Code
from remoting.command import RemotingCommand, encode_command
from tests.fuzz.held.fuzzing import fits, salted
from tests.fuzz.held.growing import grown
from tests.fuzz.held.samples import BROKER_SAMPLES, heartbeat, send_ext, sub_message

MIB = 1 << 20
HALF_FRAME_BYTES = 15 * MIB
WINDOW = 2_000
ATTACK_S = 20.0
"""Then it begins again, with whichever node leads."""
OPERATORS: frozenset[int] = frozenset(
    {
        *(Code.UPDATE_BROKER_CONFIG, Code.LEDGERMQ_TRANSFER_LEADER, Code.DELETE_TOPIC_IN_BROKER),
        *(Code.CLEAN_UNUSED_TOPIC, Code.CLEAN_EXPIRED_CONSUMEQUEUE, Code.DELETE_EXPIRED_COMMITLOG),
        Code.CONTROLLER_ELECT_MASTER,
    }
)
_salts = count()
Attack = Callable[[str, str], Awaitable[None]]
"""One connection, or a few one after the other, to the leader or the name server."""


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, command: RemotingCommand) -> bytes:
    """Send it and read one answer, whatever it says."""
    writer.write(encode_command(command))
    await writer.drain()
    async with asyncio.timeout(5):
        (length,) = struct.unpack(">I", await reader.readexactly(4))
        return await reader.readexactly(length)


async def repeat(
    leader: str,
    namesrv: str,
    *,
    make: Callable[[], RemotingCommand],
    pause_s: float,
    to_namesrv: bool = False,
) -> None:
    async with connected(namesrv if to_namesrv else leader) as (reader, writer):
        while True:
            with suppress(TimeoutError):
                await ask(reader, writer, make())
            await asyncio.sleep(pause_s)


def nested_heartbeat() -> RemotingCommand:
    return RemotingCommand(Code.HEART_BEAT, 1, body=heartbeat([])[:-1] + b',"x":' + b"[" * 60_000)


def values_heartbeat() -> RemotingCommand:
    return RemotingCommand(Code.HEART_BEAT, 1, body=b'{"x":[' + b"[]," * 4_000_000 + b"1]}")


def wide_heartbeat() -> RemotingCommand:
    number = next(_salts) % 1_000
    groups = [{"groupName": f"h{number % 5}-{at}", "subscriptionDataSet": []} for at in range(900)]
    return RemotingCommand(Code.HEART_BEAT, 1, body=heartbeat(groups, f"hostile@{number}"))


def bomb() -> RemotingCommand:
    """A registration of many topics, and zeros behind it."""
    version = b'{"counter":1,"stateVersion":0,"timestamp":1}'
    row = b"T%d 4 4 6 SINGLE_TAG"
    rows = [row % at for at in range(100_000)]
    parts = [version, struct.pack(">I", len(rows)), *(struct.pack(">I", len(each)) + each for each in rows)]
    body = zlib.compress(struct.pack(">I", len(version)) + b"".join(parts) + bytes(60 * MIB), 1)
    ext = {"brokerName": f"h{next(_salts) % 50}", "brokerAddr": "10.0.0.1:1", "clusterName": "c"}
    return RemotingCommand(
        Code.REGISTER_BROKER, 1, ext_fields=ext | {"brokerId": "0", "compressed": "true"}, body=body
    )


def sql_pull() -> RemotingCommand:
    text = f"a{next(_salts)} > " + (
        "-" * 65_000 if random.random() < 0.5 else "1 or a = 'b'" + " or a = 'b'" * 390
    )
    ext = {"consumerGroup": "HostileReaders", "topic": "Hostile", "queueId": "0", "queueOffset": "0"}
    ext |= {"maxMsgNums": "1024", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0"}
    ext |= {"subscription": text, "expressionType": "SQL92", "subVersion": "0"}
    return RemotingCommand(Code.PULL_MESSAGE, 1, ext_fields=ext)


def batch() -> RemotingCommand:
    return RemotingCommand(
        Code.SEND_BATCH_MESSAGE, 1, ext_fields=send_ext("Hostile", m="true"), body=sub_message() * 8_000
    )


def large() -> RemotingCommand:
    return RemotingCommand(Code.SEND_MESSAGE_V2, 1, ext_fields=send_ext("Hostile"), body=bytes(4 * MIB))


async def half_frames(leader: str, namesrv: str) -> None:
    async with connected(leader) as (reader, writer):
        writer.write(struct.pack(">II", HALF_FRAME_BYTES, 1_000) + bytes(HALF_FRAME_BYTES - 1_000))
        await writer.drain()
        async with asyncio.timeout(5):
            await reader.read(1)


async def small_sends(leader: str, namesrv: str) -> None:
    """As many as are answered, a window of them at a time."""
    frame = encode_command(
        RemotingCommand(Code.SEND_MESSAGE_V2, 1, ext_fields=send_ext("Hostile"), body=b"x" * 100)
    )
    async with connected(leader) as (reader, writer):
        while True:
            writer.write(frame * WINDOW)
            await writer.drain()
            for _ in range(WINDOW):
                (length,) = struct.unpack(">I", await reader.readexactly(4))
                await reader.readexactly(length)


async def unread_answers(leader: str, namesrv: str) -> None:
    """Asks for large answers, and never reads one."""
    ext = {"consumerGroup": "HostileReaders", "topic": "Hostile", "queueId": "0", "queueOffset": "0"}
    ext |= {"maxMsgNums": "1024", "sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": "15000"}
    frame = encode_command(RemotingCommand(Code.PULL_MESSAGE, 1, ext_fields=ext | {"subscription": "*"}))
    async with connected(leader) as (_, writer):
        with suppress(TimeoutError):
            async with asyncio.timeout(20):
                while True:
                    writer.write(frame * 1_000)
                    await writer.drain()
                    await asyncio.sleep(0.1)


async def storm(leader: str, namesrv: str) -> None:
    for _ in range(20):
        async with connected(leader):
            pass


class Grown:
    """Requests of every client's code, grown at random."""

    def __init__(self, seed: int) -> None:
        samples = [each for each in BROKER_SAMPLES if each.code not in OPERATORS]
        self._rng = random.Random(seed)
        self._sources = [grown(each, self._rng) for each in samples]

    def __call__(self) -> RemotingCommand:
        sample = next(self._rng.choice(self._sources))
        return salted(sample) if fits(sample) else self()


def attacks() -> list[tuple[str, Attack]]:
    def every(pause_s: float, make: Callable[[], RemotingCommand], *, to_namesrv: bool = False) -> Attack:
        return partial(repeat, make=make, pause_s=pause_s, to_namesrv=to_namesrv)

    return [
        ("nested heartbeats", every(0.2, nested_heartbeat)),
        ("heartbeats of millions of values", every(0.5, values_heartbeat)),
        ("heartbeats of many groups", every(0.5, wide_heartbeat)),
        ("half frames", half_frames),
        ("registrations that grow", every(0.5, bomb, to_namesrv=True)),
        ("SQL92 filters", every(0.05, sql_pull)),
        ("batches of 8,000", every(2.0, batch)),
        ("messages of 4 MiB", every(8.0, large)),
        ("floods of small sends", small_sends),
        ("answers that are not read", unread_answers),
        ("connections opened and closed", storm),
        ("grown requests", every(0.2, Grown(7))),
    ]


class Leader:
    """Which of the nodes leads."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self._nodes = nodes
        self.address = nodes[0]

    async def follow(self) -> None:
        while True:
            for node in self._nodes:
                with suppress(OSError, asyncio.IncompleteReadError, TimeoutError, struct.error):
                    async with connected(node) as (reader, writer):
                        answer = await ask(reader, writer, RemotingCommand(Code.LEDGERMQ_NODE_STATUS, 1))
                        if b'"role":"LEADER"' in answer:
                            self.address = node
            await asyncio.sleep(2)


async def keep_on(attack: Attack, leader: Leader, namesrv: str, done: Counter[str], name: str) -> None:
    """Over and over; what is closed or refused is begun again."""
    while True:
        with suppress(OSError, asyncio.IncompleteReadError, TimeoutError, struct.error):
            async with asyncio.timeout(ATTACK_S):
                await attack(leader.address, namesrv)
        done[name] += 1
        await asyncio.sleep(0.1)


async def run(nodes: Sequence[str], namesrv: str, connections: int, seconds: float) -> None:
    kinds, leader = attacks(), Leader(nodes)
    done: Counter[str] = Counter()
    tasks = [asyncio.create_task(leader.follow())]
    for at in range(connections):
        name, attack = kinds[at % len(kinds)]
        tasks.append(asyncio.create_task(keep_on(attack, leader, namesrv, done, name)))
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        await asyncio.sleep(min(5.0, max(end_s - time.monotonic(), 0.1)))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    print(dict(done))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("namesrv")
    parser.add_argument("nodes", nargs="+")
    parser.add_argument("--connections", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=600.0)
    options = parser.parse_args()
    asyncio.run(run(options.nodes, options.namesrv, options.connections, options.seconds))


if __name__ == "__main__":
    main()
