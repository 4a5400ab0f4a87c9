"""Makes each node's broker.toml from the cluster's plan, and checks it by the broker's own rules."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from broker.config import ConfigError, load_config
from dledger.credentials import member_uri
from ledgermq.errors import UserError
from ledgermq.local.plan import (
    HOST,
    ClusterPlan,
    NodePlan,
    Scalar,
    read_toml,
    to_toml,
    write_whole,
)
from namesrv.rights import CERTIFICATE

PLANNED_KEYS = {
    "bindAddress": "a local cluster listens on 127.0.0.1 only",
    "brokerIP1": "a local cluster listens on 127.0.0.1 only",
    "dLegerJoin": "`ledgermq member add --local` sets it",
    "dLegerPeers": "it follows from --nodes and --broker-port",
    "dLegerSelfId": "each node has its own",
    "enableDLegerCommitLog": "a local cluster is always a replication group",
    "listenPort": "use --broker-port",
    "metricsAddress": "a local cluster listens on 127.0.0.1 only",
    "metricsPort": "it follows from --broker-port",
    "namesrvAddr": "use --namesrv-port",
    "namesrvTlsEnable": "the name server knows the nodes by their certificates",
    "replicationBindAddress": "a local cluster listens on 127.0.0.1 only",
    "replicationTlsCaPath": "`ledgermq up` makes the certificates; see --replication-tls",
    "replicationTlsCertPath": "`ledgermq up` makes the certificates; see --replication-tls",
    "replicationTlsKeyPath": "`ledgermq up` makes the certificates; see --replication-tls",
    "storePathRootDir": "use --data",
    "tlsMode": "use --tls",
    **dict.fromkeys(("tlsCertPath", "tlsKeyPath", "tlsTrustCertPath", "tlsEnable"), "it follows from --tls"),
}

LOCAL_DEFAULTS: Mapping[str, Scalar] = {
    # The disk of a workstation may be nearly full with other data, which must not cause an early deletion
    # of messages.
    "cleanFileForciblyEnable": False,
}
"""Defaults of a local cluster that differ from those of the broker; the plan's settings override them."""


def read_settings(config: Path | None, overrides: Sequence[str]) -> dict[str, Scalar]:
    """The broker keys of the TOML file and of the KEY=VALUE overrides; overrides have precedence.

    Raises: UserError for tables and lists, and for keys that the plan itself sets.
    """
    settings: dict[str, Scalar] = {}
    for key, value in (read_toml(config) if config else {}).items():
        if not isinstance(value, str | int | float | bool):
            raise UserError(f"{key} in {config} must be a plain value.")
        settings[key] = value
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise UserError(f"--set {override} is not of the form KEY=VALUE.")
        settings[key.strip()] = text.strip()
    for key in settings.keys() & PLANNED_KEYS.keys():
        raise UserError(f"{key} cannot be set for a local cluster: {PLANNED_KEYS[key]}.")
    return settings


def node_values(plan: ClusterPlan, node: NodePlan) -> Mapping[str, Scalar]:
    """All keys of a node's broker.toml."""
    peers = ";".join(f"{peer.id}-{peer.replication_address}" for peer in plan.peers_of(node))
    return {
        **LOCAL_DEFAULTS,
        **({"preferredLeaderId": plan.group_of(node).preferred_leader} if plan.group_count > 1 else {}),
        **plan.settings,
        **({"brokerName": plan.group_of(node).broker_name} if plan.group_count > 1 else {}),
        "bindAddress": HOST,
        "brokerIP1": HOST,
        "listenPort": node.remoting_port,
        "metricsAddress": HOST,
        "metricsPort": node.metrics_port,
        "namesrvAddr": plan.namesrv_address,
        "storePathRootDir": str(node.store),
        "enableDLegerCommitLog": True,
        "dLegerPeers": peers,
        "dLegerSelfId": node.id,
        **({"dLegerJoin": True} if plan.has_joined(node) else {}),
        **(replication_keys(plan.certificates_dir, node.id) if plan.has_replication_tls else {}),
        "namesrvTlsEnable": plan.has_known_brokers,
        **(client_keys(plan.certificates_dir, node.id) if plan.has_client_tls else {}),
    }


def replication_keys(certificates: Path, node_id: str) -> Mapping[str, Scalar]:
    """The broker keys for the files that `ledgermq.members` makes in the folder."""
    return {
        "replicationTlsCertPath": str(certificates / f"{node_id}.pem"),
        "replicationTlsKeyPath": str(certificates / f"{node_id}.key"),
        "replicationTlsCaPath": str(certificates / "ca.pem"),
    }


@dataclass(frozen=True, slots=True)
class KnownBroker:
    """A broker that is known by the certificates of its group's members."""

    name: str
    group: str
    node_ids: Iterable[str]

    def option(self) -> str:
        identities = (f"{CERTIFICATE}:{member_uri(self.group, node_id)}" for node_id in self.node_ids)
        return f"{self.name}={','.join(identities)}"


def namesrv_tls_options(
    certificates: Path, own: str, brokers: Iterable[KnownBroker], mode: str
) -> tuple[str, ...]:
    """The options of a name server that knows the brokers: no other process can register their names, or
    remove them. `own`: the name of its certificate.
    """
    return (
        *("--tls-mode", mode),
        *("--tls-cert", str(certificates / f"{own}.pem")),
        *("--tls-key", str(certificates / f"{own}.key")),
        *("--tls-ca", str(certificates / "ca.pem"), "--tls-client-auth", "optional"),
        *(part for broker in brokers for part in ("--broker-identity", broker.option())),
    )


def client_keys(certificates: Path, node_id: str) -> Mapping[str, Scalar]:
    """The broker keys to use the same files for clients; `tlsMode` is among the plan's settings."""
    return {
        "tlsCertPath": str(certificates / f"{node_id}.pem"),
        "tlsKeyPath": str(certificates / f"{node_id}.key"),
        "tlsTrustCertPath": str(certificates / "ca.pem"),
        "tlsEnable": True,
    }


def write_node_files(plan: ClusterPlan, nodes: Iterable[NodePlan] | None = None) -> None:
    """Write the broker.toml of these nodes, or of all, then check each as the broker will.

    Raises: UserError with the broker's error text.
    """
    for node in plan.nodes if nodes is None else nodes:
        node.home.mkdir(parents=True, exist_ok=True)
        write_whole(node.config_file, to_toml(node_values(plan, node)))
        try:
            load_config(node.config_file)
        except ConfigError as error:
            raise UserError(f"the configuration cannot be used: {error}.") from error
