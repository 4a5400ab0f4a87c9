"""`ledgermq node`: one node of a local cluster, started again."""

import os
from pathlib import Path

from ledgermq.cluster_commands import node_argv
from ledgermq.cluster_file import HOST, require_plan
from ledgermq.errors import UserError
from sockets.listening import PortInUseError, bound


def node(node_id: str, data_dir: Path) -> None:
    """Becomes the node's process, in the foreground; it does not return.

    Raises: UserError when there is no such node or it runs already.
    """
    plan = require_plan(data_dir.absolute())
    wanted = plan.node(node_id)
    for port in (wanted.remoting_port, wanted.replication_port, wanted.metrics_port):
        try:
            bound(HOST, port).close()
        except PortInUseError as error:
            what = "seems to run already" if error.is_listening else "cannot start"
            raise UserError(f"{node_id} {what}: its {error}.") from error
    argv = node_argv(wanted)
    os.execv(argv[0], argv)
