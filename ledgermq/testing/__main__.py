"""`python -m ledgermq.testing --home DIR`: the name server and the one broker of the plan in the folder, in
one process, until SIGTERM. `ledgermq.testing.broker` starts it.
"""

import gc

if __name__ == "__main__":
    gc.disable()  # imports make tens of thousands of objects and no garbage

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path

from broker.__main__ import EXIT_FAILED, serve_until
from ledgermq.local.plan import require_plan
from ledgermq.testing.one_node import OneNode
from remoting.loop import run
from telemetry.log_lines import Whereabouts, log_to_stderr


def main() -> int:
    """Run until SIGTERM; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ledgermq.testing", description="One broker for tests.")
    parser.add_argument("--home", type=Path, required=True, metavar="DIR", help="folder with a cluster.toml")
    options = parser.parse_args()
    os.umask(0o077)
    log_to_stderr("text", "INFO", Whereabouts("testing"))
    return run(_serve(options.home))


async def _serve(home: Path) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    node = OneNode(require_plan(home))
    try:
        await node.name_server.start()
        # A node in production collects first, and pays a tenth of the time to start for it.
        return await serve_until(node.broker, stop, gc.freeze)
    except OSError as error:
        print(f"the name server cannot start: {error}", file=sys.stderr)
        return EXIT_FAILED
    finally:
        await node.stop()


if __name__ == "__main__":
    gc.enable()
    sys.exit(main())
