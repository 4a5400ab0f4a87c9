"""`python -m tests.walks [produce|pull|create_topic|post_topic …]`: prints the paths of requests."""

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.walks.walk import running_node

WALKS = ("produce", "pull", "create_topic", "post_topic")


async def main(names: list[str]) -> None:
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            async with running_node(Path(folder), is_registered=name == "post_topic") as node:
                print(f"--- {name}\n{await getattr(node, name)()}")


asyncio.run(main(sys.argv[1:] or list(WALKS)))
