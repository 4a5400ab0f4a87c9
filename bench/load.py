"""The lean load generator against a running cluster (ledgermq/load): closed loop, or so many sends a second.

usage: python -m bench.load --namesrv 127.0.0.1:9876 --in-flight 64 [--connections 1] [--rate 5000]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.results_file import save
from ledgermq.load.cluster import LoadCluster, ask
from ledgermq.load.run import Load, LoadResult, Run
from ledgermq.messaging import tls_credentials
from remoting.acl import signer_from

TOPICS_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Where:
    """Which topics are loaded: `topic` itself, or `topic`-0 and so on."""

    namesrv: str
    topic: str = "Bench"
    topics: int = 1
    queues: int = 8

    @property
    def names(self) -> list[str]:
        return (
            [self.topic] if self.topics == 1 else [f"{self.topic}-{number}" for number in range(self.topics)]
        )

    @property
    def targets(self) -> list[tuple[str, int]]:
        """Neighbours belong to different topics, so that any part of the list is spread over all topics."""
        return [(name, queue) for queue in range(self.queues) for name in self.names]


def prepare(where: Where) -> tuple[str, int]:
    """Create the topics; return the leader's address."""

    async def make(cluster: LoadCluster) -> str:
        room = asyncio.Semaphore(TOPICS_AT_ONCE)

        async def make_one(name: str) -> str:
            async with room:
                return await cluster.make_topic(name, where.queues)

        leaders = await asyncio.gather(*(make_one(name) for name in where.names))
        return leaders[-1]

    host, _, port = ask(where.namesrv, make).rpartition(":")
    return host, int(port)


def measure(where: Where, load: Load) -> LoadResult:
    """Create the topics and run the load."""
    return Run(
        load, prepare(where), where.targets, tls=tls_credentials(), signer=signer_from(os.environ)
    ).measure()


def parse_arguments(arguments: Sequence[str] | None = None) -> tuple[Where, Load, str | None]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--namesrv", default="127.0.0.1:9876")
    parser.add_argument("--topic", default="Bench")
    parser.add_argument("--topics", type=int, default=1, help="load so many topics, --topic with a number")
    parser.add_argument("--queues", type=int, default=8, help="of each topic")
    parser.add_argument("--in-flight", "--threads", type=int, default=64, help="sends without an answer yet")
    parser.add_argument("--connections", type=int, default=1, help="the stock clients use one a broker")
    parser.add_argument("--rate", type=float, default=0.0, help="sends a second; 0: as fast as answers come")
    parser.add_argument("--size", type=int, default=1024, help="bytes of a body")
    parser.add_argument("--seconds", type=float, default=8.0, help="measured after the warm-up")
    parser.add_argument("--warmup", type=float, default=3.0, dest="warmup_s")
    parser.add_argument("--source", default="", help="address that the connections come from")
    parser.add_argument("--save", help="name of the file in bench/results")
    values: dict[str, Any] = vars(parser.parse_args(arguments))
    name: str | None = values.pop("save")
    where = {key: values.pop(key) for key in ("namesrv", "topic", "topics", "queues")}
    return Where(**where), Load(**values), name


def main() -> None:
    where, load, name = parse_arguments()
    result = measure(where, load)
    print(json.dumps(result.as_json()))
    if name:
        print(save(name, asdict(where) | asdict(load), result.as_json()))


if __name__ == "__main__":
    main()
