"""Health check: can clients reach the addresses that the name server returns? Pure."""

import ipaddress
from collections.abc import Iterator

from admin_api.cluster.schemas import NodeState
from admin_api.health_checks.facts import Facts, Finding, error

_REMEDY = (
    "Set brokerIP1 (and listenPort) of the node to the address that clients reach it at, and restart it."
)


def check_addresses(facts: Facts) -> Iterator[Finding]:
    is_local = is_loopback(facts.view.namesrv.address)
    for entry in facts.listed:
        if is_loopback(entry.address) and not is_local:
            yield error(
                "address-loopback",
                entry.address,
                f"{entry.broker_name} is registered as {entry.address}, which is every machine's own: "
                "clients elsewhere look for it on themselves.",
                _REMEDY,
            )
        status = facts.statuses.get(entry.address)
        if status is not None and status.remoting_address != entry.address:
            yield error(
                "address-differs",
                entry.address,
                f"The name server lists {entry.address}, where {status.node_id} of {status.broker_name} "
                f"answers and says its address is {status.remoting_address}.",
                _REMEDY,
            )
        elif status is not None and status.broker_name != entry.broker_name:
            yield error(
                "address-of-another",
                entry.address,
                f"The name server lists {entry.address} for {entry.broker_name}, but {status.broker_name} "
                "answers there.",
                "Two brokers were given one address; give each its own listenPort or brokerIP1.",
            )


def check_unclaimed(facts: Facts) -> Iterator[Finding]:
    """Addresses in the routes that no node claims, while its group is well without them."""
    for group in facts.replicated():
        if not any(node.id is not None for node in group.nodes):
            continue
        for node in group.nodes:
            if (
                node.id is None
                and node.state is NodeState.DOWN
                and node.remoting_address not in facts.statuses
            ):
                yield error(
                    "address-unclaimed",
                    str(node.remoting_address),
                    f"The name server lists {node.remoting_address} for {group.broker_name}, and no node of "
                    f"it has that address: {node.problem}.",
                    "A node that is gone is dropped after two minutes; if it stays, another process "
                    "registers it with a wrong brokerIP1 or listenPort.",
                )


def is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
