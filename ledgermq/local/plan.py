"""The plan of a local cluster: its ports, its folder and its settings, stored in DIR/cluster.toml. To check
that a port is free, it is bound.
"""

import json
import string
import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from broker.config import BrokerConfig
from ledgermq.errors import WRONG_USAGE, UserError
from sockets.listening import WAIT_S, PortInUseError, bound, bound_now

HOST = "127.0.0.1"
NAME_SERVER = "namesrv"
FILE_NAME = "cluster.toml"
FILE_VERSION = 1
CHANGED_VERSION = 2
"""Of a plan with several groups or changed members: releases that do not know that must not start it."""
NODES_MAX = 9
"""Of one group."""
GROUPS_MAX = 9
NUMBERS_PER_GROUP = 10
PORTS_PER_NODE = 10
REPLICATION_PORT_STEP = 3
METRICS_PORT_STEP = 5
GRPC_PORT = 8081

Scalar = str | int | float | bool


def node_name(number: int) -> str:
    return f"n{number}"


def numbers_of(group: int) -> range:
    """The numbers that nodes of this group may have."""
    first = group * NUMBERS_PER_GROUP
    return range(first, first + NODES_MAX)


def broker_name_of(first: str, group: int) -> str:
    """Of `broker-a` the others are `broker-b`, `broker-c`, …; of `orders` they are `orders-b`, …"""
    return f"{first.removesuffix('-a')}-{string.ascii_lowercase[group]}" if group else first


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One node: the ports for clients, for its peers and for Prometheus, and its folder."""

    id: str
    number: int
    remoting_port: int
    home: Path

    @property
    def replication_port(self) -> int:
        return self.remoting_port + REPLICATION_PORT_STEP

    @property
    def metrics_port(self) -> int:
        return self.remoting_port + METRICS_PORT_STEP

    @property
    def metrics_url(self) -> str:
        return f"http://{HOST}:{self.metrics_port}/metrics"

    @property
    def remoting_address(self) -> str:
        return f"{HOST}:{self.remoting_port}"

    @property
    def replication_address(self) -> str:
        return f"{HOST}:{self.replication_port}"

    @property
    def config_file(self) -> Path:
        return self.home / "broker.toml"

    @property
    def store(self) -> Path:
        return self.home / "store"


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """One replication group: its broker name, its name among the groups, and its nodes."""

    number: int
    broker_name: str
    name: str
    nodes: tuple[NodePlan, ...]

    @property
    def preferred_leader(self) -> str:
        """Each group prefers another of its nodes as leader, so that the leaders are spread over machines."""
        return self.nodes[self.number % len(self.nodes)].id


@dataclass(frozen=True, slots=True)
class NamesrvPlan:
    """One name server; they know nothing of each other."""

    name: str
    port: int
    home: Path

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """A whole local cluster. `settings` are broker keys for every node."""

    data_dir: Path
    node_count: int = 3
    """Nodes with which each group began."""
    namesrv_port: int = 9876
    broker_port: int = 10911
    admin_port: int = 8080
    """0: no web page and HTTP interface."""
    settings: Mapping[str, Scalar] = field(default_factory=dict)
    has_replication_tls: bool = True
    """Nodes authenticate each other by certificates; false only for measurements."""
    grpc_port: int = GRPC_PORT
    """0: no endpoint for gRPC clients."""
    joined: tuple[int, ...] = ()
    """Numbers of the nodes that were added later."""
    left: tuple[int, ...] = ()
    """Numbers of those that were removed."""
    namesrv_count: int = 1
    group_count: int = 1
    """Of groups that there ever were."""
    removed_groups: tuple[int, ...] = ()
    """Numbers of those that were removed; none gets such a number again."""

    @property
    def group_numbers(self) -> tuple[int, ...]:
        return tuple(number for number in range(self.group_count) if number not in self.removed_groups)

    @property
    def nodes(self) -> tuple[NodePlan, ...]:
        """Of all groups: those of the first are n0, n1, …, those of the second n10, n11, …"""
        began = {number for group in self.group_numbers for number in self._began(group)}
        joined = {number for number in self.joined if number // NUMBERS_PER_GROUP in self.group_numbers}
        return tuple(map(self._node, sorted((began | joined) - {*self.left})))

    def _began(self, group: int) -> range:
        """The numbers of the nodes with which a group began."""
        first = group * NUMBERS_PER_GROUP
        return range(first, first + self.node_count)

    @property
    def groups(self) -> tuple[GroupPlan, ...]:
        """The first has the name of the settings."""
        return tuple(
            GroupPlan(
                number,
                *self.names_of(number),
                tuple(each for each in self.nodes if _group_of(each) == number),
            )
            for number in self.group_numbers
        )

    def names_of(self, group: int) -> tuple[str, str]:
        """The broker name of a group, also of one that is not there, and its name among the groups."""
        if group == 0:
            return self.broker_name, self.group
        name = broker_name_of(self.broker_name, group)
        return name, name

    def group_of(self, node: NodePlan) -> GroupPlan:
        return next(group for group in self.groups if group.number == _group_of(node))

    def _node(self, number: int) -> NodePlan:
        name = node_name(number)
        port = self.broker_port + PORTS_PER_NODE * number
        return NodePlan(name, number, port, self.data_dir / name)

    def peers_of(self, node: NodePlan) -> tuple[NodePlan, ...]:
        """Its dLegerPeers. Those of the first nodes stay as they were: they are the members until the log
        names others, whatever becomes of a node that is to join. The first of one that has lost its disk
        would begin another group of the same name.
        """
        if self.has_joined(node) or (self.node_count == 1 and self._is_emptied(node)):
            return self.group_of(node).nodes
        return tuple(map(self._node, self._began(_group_of(node))))

    def _is_emptied(self, node: NodePlan) -> bool:
        joined = [each for each in self.group_of(node).nodes if self.has_joined(each)]
        return not node.store.exists() and any(each.store.exists() for each in joined)

    def has_joined(self, node: NodePlan) -> bool:
        """Whether the node was added to the running cluster."""
        return node.number in self.joined

    def with_node(self, node_id: str) -> "ClusterPlan":
        """With one more node. Raises: UserError."""
        if node_id in [node.id for node in self.nodes]:
            return self  # an earlier try was interrupted
        number = self._number(node_id)
        left = tuple(each for each in self.left if each != number)
        grown = replace(self, joined=tuple(sorted({*self.joined, number})), left=left)
        grown.ports()
        return grown

    def without(self, node_id: str) -> "ClusterPlan":
        """Raises: UserError."""
        return replace(self, left=tuple(sorted({*self.left, self._number(node_id)})))

    def with_group(self) -> "ClusterPlan":
        """With one more group. Raises: UserError."""
        if self.group_count == GROUPS_MAX:
            raise UserError(f"the cluster in {self.data_dir} had {GROUPS_MAX} groups, and can have no more.")
        _require_names(self.settings)
        grown = replace(self, group_count=self.group_count + 1)
        grown.ports()
        return grown

    def without_group(self, name: str) -> "ClusterPlan":
        """Raises: UserError."""
        found = next((group for group in self.groups if group.name == name), None)
        if found is None:
            there = ", ".join(group.name for group in self.groups)
            raise UserError(f"the cluster in {self.data_dir} has no group {name}; its groups are {there}.")
        if len(self.groups) == 1:
            raise UserError(f"{name} is the only group of the cluster in {self.data_dir}.")
        return replace(self, removed_groups=tuple(sorted({*self.removed_groups, found.number})))

    def _number(self, node_id: str) -> int:
        numbers = {node_name(number): number for group in self.group_numbers for number in numbers_of(group)}
        if node_id not in numbers:
            spans = [
                f"{node_name(each[0])} to {node_name(each[-1])}"
                for each in map(numbers_of, self.group_numbers)
            ]
            raise UserError(
                f"{node_id} is no node of a local cluster: they are {', '.join(spans)}.", WRONG_USAGE
            )
        return numbers[node_id]

    def node(self, node_id: str) -> NodePlan:
        """Raises: UserError, which names the existing nodes, if there is no node with this id."""
        for node in self.nodes:
            if node.id == node_id:
                return node
        there = ", ".join(node.id for node in self.nodes)
        raise UserError(f"the cluster in {self.data_dir} has no node {node_id}; its nodes are {there}.")

    @property
    def namesrvs(self) -> tuple[NamesrvPlan, ...]:
        """The first keeps its name when others are added: `namesrv`, `namesrv-2`, `namesrv-3`."""
        names = (NAME_SERVER, *(f"{NAME_SERVER}-{number}" for number in range(2, self.namesrv_count + 1)))
        return tuple(
            NamesrvPlan(name, self.namesrv_port + at, self.data_dir / name) for at, name in enumerate(names)
        )

    @property
    def namesrv_address(self) -> str:
        """Of all name servers, separated by `;`, as clients and brokers are given them."""
        return ";".join(each.address for each in self.namesrvs)

    @property
    def admin_url(self) -> str | None:
        """None without the admin process."""
        return f"http://{HOST}:{self.admin_port}" if self.admin_port else None

    @property
    def grpc_address(self) -> str | None:
        """Where gRPC clients connect; None without an endpoint for them."""
        return f"{HOST}:{self.grpc_port}" if self.grpc_port else None

    @property
    def grpc_metrics_port(self) -> int:
        return self.grpc_port + METRICS_PORT_STEP

    @property
    def grpc_metrics_url(self) -> str:
        return f"http://{HOST}:{self.grpc_metrics_port}/metrics"

    @property
    def client_tls_mode(self) -> str:
        """The TLS mode of all ports for clients, on the name server and on the brokers."""
        return str(self.settings.get("tlsMode", "disabled"))

    @property
    def has_client_tls(self) -> bool:
        return self.client_tls_mode != "disabled"

    @property
    def has_certificates(self) -> bool:
        """Whether the nodes have certificates."""
        return self.has_replication_tls or self.has_client_tls

    @property
    def has_known_brokers(self) -> bool:
        """Whether the name server knows the nodes by their certificates. It needs one itself: without it and
        without an authority that could sign one, whose files they are decides.
        """
        return self.has_certificates and (self.certificates_dir / f"{NAME_SERVER}.pem").exists()

    @property
    def broker_name(self) -> str:
        return str(self.settings.get("brokerName") or BrokerConfig.model_fields["broker_name"].default)

    @property
    def group(self) -> str:
        """The name of the replication group, as the brokers use it."""
        return str(self.settings.get("dLegerGroup") or self.broker_name)

    @property
    def certificates_dir(self) -> Path:
        return self.data_dir / "certificates"

    @property
    def logs_dir(self) -> Path:
        return self.data_dir / "logs"

    def ports(self) -> dict[int, str]:
        """Every port with its purpose.

        Raises: UserError when two processes would share a port, or a port is out of range.
        """
        wanted = [(each.port, f"the name server {each.name} (--namesrv-port)") for each in self.namesrvs]
        if self.admin_port:
            wanted.append((self.admin_port, "the admin (--admin-port)"))
        if self.grpc_port:
            wanted.append((self.grpc_port, "gRPC clients (--grpc-port)"))
            wanted.append((self.grpc_metrics_port, "metrics of the gRPC endpoint (--grpc-port)"))
        for node in self.nodes:
            wanted.append((node.remoting_port, f"clients of {node.id} (--broker-port)"))
            wanted.append((node.replication_port, f"replication of {node.id} (--broker-port)"))
            wanted.append((node.metrics_port, f"metrics of {node.id} (--broker-port)"))
        return checked_ports(wanted)

    @property
    def changed_ns(self) -> int:
        """When its file was last written; 0: there is none."""
        try:
            return (self.data_dir / FILE_NAME).stat().st_mtime_ns
        except OSError:
            return 0

    @property
    def _is_changed(self) -> bool:
        return bool(self.joined or self.left or self.group_count > 1)

    def save(self) -> None:
        """Write cluster.toml; it replaces an earlier one atomically."""
        head = {
            "version": CHANGED_VERSION if self._is_changed else FILE_VERSION,
            "nodes": self.node_count,
            "namesrvPort": self.namesrv_port,
            "namesrvs": self.namesrv_count,
            "brokerPort": self.broker_port,
            "adminPort": self.admin_port,
            "grpcPort": self.grpc_port,
            "replicationTls": self.has_replication_tls,
            "groups": self.group_count,
        }
        text = f"# The plan of this local cluster, written by `ledgermq up`.\n{to_toml(head)}"
        if self.joined or self.left:
            text += f"joined = {list(self.joined)}\nleft = {list(self.left)}\n"
        if self.removed_groups:
            text += f"removedGroups = {list(self.removed_groups)}\n"
        write_whole(self.data_dir / FILE_NAME, f"{text}\n[broker]\n{to_toml(self.settings)}")


def checked_ports(wanted: Iterable[tuple[int, str]]) -> dict[int, str]:
    """Every port with its purpose. Raises: UserError, as `ClusterPlan.ports`."""
    ports: dict[int, str] = {}
    for port, purpose in wanted:
        if not 1 <= port <= 65535:
            raise UserError(f"port {port} for {purpose} is not between 1 and 65535.")
        if port in ports:
            raise UserError(f"port {port} would be used twice: for {ports[port]} and for {purpose}.")
        ports[port] = purpose
    return ports


def _group_of(node: NodePlan) -> int:
    return node.number // NUMBERS_PER_GROUP


def group_of(node_id: str) -> int:
    """The number of the group that a node with this id belongs to."""
    return int(node_id[1:]) // NUMBERS_PER_GROUP


def load_plan(data_dir: Path) -> ClusterPlan | None:
    """The plan stored in the folder; None when there is none.

    Raises: UserError when the file cannot be used.
    """
    path = data_dir / FILE_NAME
    if not path.exists():
        return None
    values = read_toml(path)
    if values.get("version") not in (FILE_VERSION, CHANGED_VERSION):
        found = values.get("version")
        raise UserError(f"{path} has version {found}; this LedgerMQ reads up to version {CHANGED_VERSION}.")
    numbers = [values.get(key) for key in ("nodes", "namesrvPort", "brokerPort", "adminPort")]
    numbers += [values.get("grpcPort", GRPC_PORT), values.get("namesrvs", 1), values.get("groups", 1)]
    settings = values.get("broker", {})
    if not isinstance(settings, dict) or not all(isinstance(number, int) for number in numbers):
        raise UserError(
            f"{path} lacks a number, or its settings are no table; correct it, or use another --data."
        )
    nodes, namesrv_port, broker_port, admin_port, grpc_port, namesrvs, groups = (
        int(str(each)) for each in numbers
    )
    return ClusterPlan(
        data_dir,
        nodes,
        namesrv_port,
        broker_port,
        admin_port,
        settings,
        bool(values.get("replicationTls", True)),
        grpc_port,
        _numbers(path, values, "joined", _NODE_NUMBERS),
        _numbers(path, values, "left", _NODE_NUMBERS),
        namesrvs,
        groups,
        _numbers(path, values, "removedGroups", range(groups)),
    )


_NODE_NUMBERS = [number for group in range(GROUPS_MAX) for number in numbers_of(group)]


def _numbers(path: Path, values: Mapping[str, object], key: str, known: Sequence[int]) -> tuple[int, ...]:
    """Raises: UserError."""
    found = values.get(key, [])
    if not isinstance(found, list) or not all(each in known for each in found):
        raise UserError(f"{key} in {path} is no list of numbers that there are; correct it.")
    return tuple(found)


def require_plan(data_dir: Path) -> ClusterPlan:
    """Raises: UserError when the folder holds no cluster."""
    plan = load_plan(data_dir)
    if plan is None:
        raise UserError(f"there is no cluster in {data_dir}; `ledgermq up --data {data_dir}` makes one.")
    return plan


def merge_plan(
    kept: ClusterPlan | None,
    data_dir: Path,
    *,
    nodes: int | None,
    groups: int | None,
    namesrvs: int | None,
    namesrv_port: int | None,
    broker_port: int | None,
    admin_port: int | None,
    grpc_port: int | None,
    settings: Mapping[str, Scalar],
    has_replication_tls: bool | None = None,
) -> ClusterPlan:
    """The stored plan, changed by the given options (None: not given); its number of nodes is fixed.

    Raises: UserError.
    """
    plan = kept or ClusterPlan(data_dir, node_count=nodes or 3)
    if kept is not None and nodes is not None:
        _require_nodes(kept, nodes)
    if not 1 <= plan.node_count <= NODES_MAX:
        raise UserError(f"--nodes {plan.node_count} is not between 1 and {NODES_MAX}.")
    there = len(plan.group_numbers)
    if groups is not None and groups < (1 if kept is None else there):
        raise UserError(
            f"the cluster in {data_dir} has {there} groups, and --groups {groups} would leave out messages; "
            "leave the option out, or remove a group with `ledgermq replication remove`."
        )
    group_count = plan.group_count + (groups or there) - there
    if group_count > 1:
        _require_names({**plan.settings, **settings})
    if group_count > GROUPS_MAX:
        raise UserError(f"the cluster in {data_dir} can have {GROUPS_MAX} groups in all, removed ones too.")
    return replace(
        plan,
        group_count=group_count,
        namesrv_count=namesrvs or plan.namesrv_count,
        namesrv_port=namesrv_port or plan.namesrv_port,
        broker_port=broker_port or plan.broker_port,
        admin_port=plan.admin_port if admin_port is None else admin_port,
        grpc_port=plan.grpc_port if grpc_port is None else grpc_port,
        settings={**plan.settings, **settings},
        has_replication_tls=plan.has_replication_tls if has_replication_tls is None else has_replication_tls,
    )


def _require_names(settings: Mapping[str, Scalar]) -> None:
    """Raises: UserError."""
    if "dLegerGroup" in settings:
        raise UserError("with several groups dLegerGroup cannot be set: each has the name of its broker.")


def _require_nodes(kept: ClusterPlan, nodes: int) -> None:
    """Raises: UserError."""
    sizes = {len(group.nodes) for group in kept.groups}
    if nodes != kept.node_count and sizes != {nodes}:
        there = " or ".join(map(str, sorted(sizes)))
        raise UserError(
            f"the cluster in {kept.data_dir} has {there} nodes, --nodes {nodes} conflicts with that; "
            "leave the option out, choose another folder with --data, or change its members with "
            "`ledgermq member add --local`."
        )


def read_toml(path: Path) -> dict[str, object]:
    """Raises: UserError that names the file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not a TOML file: {error}.") from error


def to_toml(values: Mapping[str, Scalar | Sequence[str]]) -> str:
    """Lines of `key = value`. JSON strings, numbers, booleans and lists of strings are valid TOML too."""
    return "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items())


def write_whole(path: Path, text: str) -> None:
    """Write a temporary file and rename it, so that a reader sees the old file or the new one."""
    beside = path.with_name(path.name + ".tmp")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def is_free(port: int) -> bool:
    """Whether a server could listen on the port of 127.0.0.1 now."""
    try:
        bound_now(HOST, port).close()
    except OSError:
        return False
    return True


def require_free(ports: Mapping[int, str], host: str = HOST) -> None:
    """Check that all ports of the address are free. Wait for a port that a connection uses only for a moment.

    Raises: UserError naming every port that is in use, its purpose and its owner.
    """
    end_s = time.monotonic() + WAIT_S
    problems = []
    for port, purpose in ports.items():
        try:
            bound(host, port, end_s - time.monotonic()).close()
        except PortInUseError as error:
            problems.append(f"port {port} for {purpose} is in use on {host}{error.by}")
        except OSError as error:
            problems.append(f"port {port} for {purpose} cannot be used on {host}: {error.strerror}")
    if problems:
        raise UserError(f"{'; '.join(problems)}. Choose other ports, or stop what uses them.")
