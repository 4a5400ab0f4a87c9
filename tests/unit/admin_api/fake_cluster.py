"""A name server and brokers behind the reader's one seam, without a network."""

import asyncio
from collections.abc import Iterable

import orjson

from broker.admin.types import NodeStatusMessage
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import ConnectFailedError, RequestTimeoutError
from remoting.properties_text import format_properties_text
from remoting.route import BrokerData, ClusterInfo, format_cluster_info

NAMESRV_ADDRESS = "127.0.0.1:9876"


class FakeCluster:
    """Answers as the brokers in `statuses` would; an address that is not there refuses."""

    def __init__(self, statuses: Iterable[NodeStatusMessage] = ()) -> None:
        self.statuses = {status.remoting_address: status for status in statuses}
        self.listed: dict[str, str] = {}
        self.brokers_body: bytes | None = None
        """Sent instead of the list of brokers."""
        self.namesrv_is_up = True
        self.namesrv_config = {"bindAddress": "127.0.0.1", "listenPort": "9876"}
        self.endpoints: dict[str, str] = {}
        """Of gRPC clients, in the name server's table."""
        self.grpc_clients: dict[str, list[dict[str, object]]] = {}
        """By the address of their endpoint."""
        self.hanging: set[str] = set()
        self.bodies: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.in_flight = 0
        self.in_flight_max = 0

    def list_all(self, leader: str) -> None:
        """Lists every status' address as the name server would with this leader."""
        others = iter(range(1, 100))
        for address, status in self.statuses.items():
            broker_id = 0 if status.node_id == leader else next(others)
            self.listed[str(broker_id)] = address

    async def invoke(self, address: str, command: RemotingCommand, timeout_s: float = 3.0) -> RemotingCommand:
        self.asked.append(address)
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        await asyncio.sleep(0)
        self.in_flight -= 1
        if address in self.hanging:
            raise RequestTimeoutError(f"{address}: no answer within {timeout_s} s")
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            return self._cluster_info(address)
        if command.code == RequestCode.GET_KVLIST_BY_NAMESPACE and self.namesrv_is_up:
            assert command.ext_fields["namespace"] == "LEDGERMQ_GRPC_ENDPOINTS"
            return RemotingCommand(code=0, body=orjson.dumps({"table": self.endpoints}))
        if command.code == RequestCode.LEDGERMQ_GRPC_CLIENTS:
            return self._clients_of(**command.ext_fields)
        if command.code == RequestCode.GET_NAMESRV_CONFIG and self.namesrv_is_up:
            return RemotingCommand(code=0, body=format_properties_text(self.namesrv_config))
        if address in self.bodies:
            return RemotingCommand(code=0, body=self.bodies[address])
        if address not in self.statuses:
            raise ConnectFailedError(f"{address}: refused")
        return RemotingCommand(code=0, body=self.statuses[address].to_json())

    def _clients_of(self, address: str, skipped: str, count: str) -> RemotingCommand:
        """As an endpoint answers through a broker, at most 100 at once."""
        clients = self.grpc_clients.get(address)
        if clients is None:
            remark = f"the gRPC endpoint {address} is not connected to this node"
            return RemotingCommand(ResponseCode.QUERY_NOT_FOUND, remark=remark)
        rows = clients[int(skipped) : int(skipped) + min(int(count), 100)]
        return RemotingCommand(0, body=orjson.dumps({"total": len(clients), "clients": rows}))

    def _cluster_info(self, address: str) -> RemotingCommand:
        if not self.namesrv_is_up or address != NAMESRV_ADDRESS:
            raise ConnectFailedError(f"{address}: refused")
        if self.brokers_body is not None:
            return RemotingCommand(code=0, body=self.brokers_body)
        addresses = {int(broker_id): at for broker_id, at in self.listed.items()}
        brokers = {"broker-a": BrokerData("DefaultCluster", "broker-a", addresses)} if addresses else {}
        return RemotingCommand(code=0, body=format_cluster_info(ClusterInfo(brokers)))
