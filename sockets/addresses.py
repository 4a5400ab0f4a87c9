"""What an address says about who can reach it."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there. Other names than `localhost` may be anything."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
