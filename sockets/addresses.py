"""Whether an address can be reached from other machines."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to the address. False for every name except `localhost`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
