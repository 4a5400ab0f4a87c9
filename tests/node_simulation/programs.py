"""What runs on the servers: the real broker and the real name server, as their `__main__` run them."""

import asyncio
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.__main__ import serve_until
from broker.app import Broker
from broker.config import BrokerConfig, config_from
from broker.store.message_log import StoreLockedError
from commitlog.errors import CorruptLogError
from dledger.durable_state import CorruptHardStateError
from namesrv.config import NameServerConfig
from namesrv.server import NameServer
from tests.node_simulation.machine import Process

ROOT = Path("/store")
NAME_SERVER_IP = "10.0.1.1"
NAME_SERVER_PORT = 9876
LISTEN_PORT = 10911
REPLICATION_PORT = LISTEN_PORT + 3
EXIT_FAILED = 1


def node_config(
    name: str,
    peers: Mapping[str, str],
    settings: Mapping[str, Any],
    *,
    queues: int,
    joins: bool = False,
    **keys: str,
) -> BrokerConfig:
    """A configuration file. `peers`: the addresses of members, its own among them; `keys`: other lines.

    `settings`, by field, may be outside the bounds of a file: smaller files than a real node may have.
    """
    ip = peers[name]
    config = config_from(
        {
            "brokerIP1": ip,
            "bindAddress": ip,
            "replicationBindAddress": ip,
            "listenPort": LISTEN_PORT,
            "namesrvAddr": f"{NAME_SERVER_IP}:{NAME_SERVER_PORT}",
            "storePathRootDir": ROOT,
            "dLegerPeers": ";".join(f"{peer}-{at}:{REPLICATION_PORT}" for peer, at in peers.items()),
            "dLegerSelfId": name,
            "defaultTopicQueueNums": queues,
            "cleanFileForciblyEnable": False,
            "dLegerJoin": joins,
            "slowPutMs": 0,  # measured in real time, which no seed decides
            **keys,
        }
    )
    return config.model_copy(update=dict(settings))


def _leave_gc_alone() -> None:
    """A node's process freezes what exists at its start; here it would be that of all nodes and all tests."""


@dataclass(frozen=True, slots=True)
class NodeProgram:
    """One broker node. `on_stopped` hears why it stopped by itself."""

    config: BrokerConfig
    on_stopped: Callable[[Process, BaseException], None]

    def make_broker(self, process: Process) -> Broker:
        return Broker(self.config, process.environment)

    async def __call__(self, process: Process) -> int:
        stop = asyncio.Event()
        process.loop.add_signal_handler(signal.SIGTERM, stop.set)
        try:
            broker = process.broker = self.make_broker(process)
        except (OSError, CorruptLogError, CorruptHardStateError, StoreLockedError) as error:
            self.on_stopped(process, error)
            return EXIT_FAILED
        code = await serve_until(broker, stop, started=_leave_gc_alone)
        if broker.failure.done():
            self.on_stopped(process, broker.failure.result())
        try:
            await broker.stop()
        except OSError as error:
            self.on_stopped(process, error)
            return EXIT_FAILED
        return code


async def name_server_program(process: Process, expiry_ms: int = 120_000) -> int:
    """A name server whose tables live in memory only. `expiry_ms`: for so long it keeps a silent broker."""
    config = NameServerConfig(host=process.machine.ip, port=NAME_SERVER_PORT, broker_expiry_ms=expiry_ms)
    server = NameServer(config, process.environment.monotonic_ms)
    await server.start()
    await asyncio.get_running_loop().create_future()
    return 0
