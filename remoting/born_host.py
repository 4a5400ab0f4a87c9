"""The address of a peer as message records hold it."""

import ipaddress


def born_host(host: str, port: int) -> bytes:
    """IPv4 address and port; records have no room for any other address, so those become 0.0.0.0."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or ipaddress.IPv4Address(0)
    return address.packed + port.to_bytes(4, "big")
