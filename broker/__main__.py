"""`python -m broker --config FILE [--set KEY=VALUE …]`: one node in the foreground, its log on stderr.

SIGTERM and SIGINT stop it cleanly. Exit code 0: stopped; 1: it could not start or go on; 2: the configuration
is wrong.
"""

import gc

if __name__ == "__main__":
    gc.disable()  # imports make tens of thousands of objects and no garbage

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import native
from broker.app import Broker
from broker.config import BrokerConfig, ConfigError, load_config
from broker.security.passwords import open_cipher
from broker.store.message_log import StoreLockedError
from commitlog.errors import CorruptLogError
from dledger.durable_state import CorruptHardStateError
from dledger.environment import Environment
from remoting.loop import run
from sockets.tls import TlsFilesError
from telemetry.log_lines import FORMATS, Whereabouts, log_to_stderr

EXIT_FAILED = 1
EXIT_CONFIG = 2
YOUNG_MAX: Final = 20_000
"""Objects allocated and not yet freed before the youngest generation is collected. Requests are freed by
their reference counts; two thousand of them in flight stay below this.
"""
MIDDLE_MAX: Final = 20
OLD_MAX: Final = 50

logger = logging.getLogger("broker")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one node until it is stopped; the exit code."""
    assert __debug__, "the broker's assertions guard its data: start Python without -O"
    options = _parse_options(arguments)
    os.umask(0o077)  # no other user of the machine reads what this process writes
    whereabouts = Whereabouts()
    log_to_stderr(options.log_format or "text", options.log_level, whereabouts)
    try:
        config = load_config(options.config, options.set)
        open_cipher(config)
    except ConfigError as error:
        logger.error("the configuration cannot be used: %s", error)
        return EXIT_CONFIG
    whereabouts.node = f"{config.group}/{config.dledger_self_id}"
    log_to_stderr(options.log_format or config.log_format, options.log_level, whereabouts)
    logger.info("compiled modules: %s", ", ".join(native.compiled_modules()) or "none, all is Python")
    return run(serve(config, whereabouts=whereabouts))


def _parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m broker", description="One LedgerMQ broker node.")
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file with RocketMQ's broker keys")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a key over the file's"
    )
    parser.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    parser.add_argument(
        "--log-format", choices=FORMATS, help="one line for each event: text, or a JSON object (logFormat)"
    )
    return parser.parse_args(arguments)


def freeze_gc() -> None:
    """To be called when the node has started: the objects that exist by now are never examined again by the
    garbage collector, and new ones seldom, so that no request waits while the whole heap is examined.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_MAX, MIDDLE_MAX, OLD_MAX)


async def serve(
    config: BrokerConfig, environment: Environment | None = None, whereabouts: Whereabouts | None = None
) -> int:
    """One node until a signal or its failure; the exit code."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        broker = Broker(config, environment)
    except (OSError, CorruptLogError, CorruptHardStateError, StoreLockedError, TlsFilesError) as error:
        logger.critical("the node cannot start: %s", error)
        return EXIT_FAILED
    if whereabouts is not None:
        whereabouts.term = broker.term
    code = await serve_until(broker, stop)
    try:
        await broker.stop()
    except OSError as error:
        logger.critical("the node could not be stopped cleanly: %s", error)
        return EXIT_FAILED
    logger.info("stopped")
    return code


async def serve_until(broker: Broker, stop: asyncio.Event, started: Callable[[], None] = freeze_gc) -> int:
    """Start it, call `started`, wait for `stop` or its failure; the exit code. The caller stops it."""
    try:
        await broker.start()
    except OSError as error:
        logger.critical("the node cannot start: %s", error)
        return EXIT_FAILED
    started()
    broker.failure.add_done_callback(lambda _: stop.set())
    await stop.wait()
    if not broker.failure.done():
        return 0
    logger.critical("the node must stop: %s", broker.failure.result())
    return EXIT_FAILED


if __name__ == "__main__":
    gc.enable()
    sys.exit(main())
