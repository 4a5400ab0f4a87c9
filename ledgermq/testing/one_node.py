"""A name server and a group of one broker, on the running event loop."""

from broker.app import Broker
from broker.config import load_config
from dledger.environment import Environment
from ledgermq.errors import UserError
from ledgermq.local.plan import HOST, ClusterPlan
from namesrv.config import NameServerConfig
from namesrv.server import NameServer


class OneNode:
    """Made of a plan with one node, whose files are written. The only voter of a group has no one to wait
    for: it leads in the first turn of its loop.

    Raises: as Broker.
    """

    def __init__(self, plan: ClusterPlan, environment: Environment | None = None) -> None:
        environment = environment or Environment()
        (node,) = plan.nodes
        self.name_server = NameServer(
            NameServerConfig(host=HOST, port=plan.namesrv_port), environment.monotonic_ms
        )
        # Metrics are for Prometheus, whose library alone is a tenth of the time to start.
        self.broker = Broker(load_config(node.config_file, ["metricsPort=0"]), environment)

    async def start(self) -> None:
        """Raises: OSError when an address cannot be bound; call `stop` then too."""
        await self.name_server.start()
        await self.broker.start()

    async def stop(self) -> None:
        await self.broker.stop()
        await self.name_server.stop()

    def check(self) -> None:
        """Raises: UserError when the broker cannot go on."""
        if self.broker.failure.done():
            raise UserError(f"the broker has failed: {self.broker.failure.result()!r}.")

    @property
    def has_applied_all(self) -> bool:
        """Whether everything that was written is committed, in the queues and delivered to the features."""
        log = self.broker.core.log
        status = log.status()
        return status is not None and log.applied_index == status.end_index
