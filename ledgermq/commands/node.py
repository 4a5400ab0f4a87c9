"""`ledgermq node`: one node of a local cluster, started again."""

import os
from pathlib import Path

from ledgermq.cluster_commands import node_argv
from ledgermq.cluster_file import require_plan
from ledgermq.errors import UserError
from ledgermq.ports import is_free


def node(node_id: str, data_dir: Path) -> None:
    """Becomes the node's process, in the foreground; it does not return.

    Raises: UserError when there is no such node or it runs already.
    """
    plan = require_plan(data_dir.absolute())
    wanted = plan.node(node_id)
    for port in (wanted.remoting_port, wanted.replication_port, wanted.metrics_port):
        if not is_free(port):
            raise UserError(f"{node_id} seems to run already: its port {port} is in use.")
    argv = node_argv(wanted)
    os.execv(argv[0], argv)
