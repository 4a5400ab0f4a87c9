"""Which clients the process serves (tokens, or every local user) and under which host names."""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from admin_api.security.tokens import Tokens

LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})
BODY_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of a request: a message of 4 MiB, as base64 or escaped in JSON, fits."""


class PolicyError(Exception):
    """The process would serve strangers; the text is a sentence."""


@dataclass(frozen=True, slots=True)
class Policy:
    """`hosts`: the names and addresses without port by which it may be called; a page of another name that
    leads here (DNS rebinding) is refused. `is_any_address`: it listens on all, and may be called by any.
    """

    tokens: Tokens = field(default_factory=Tokens)
    hosts: frozenset[str] = LOOPBACK_NAMES
    is_any_address: bool = False
    body_bytes_max: int = BODY_BYTES_MAX

    @property
    def is_open(self) -> bool:
        """Without tokens every client of the loopback address is an administrator."""
        return not self.tokens.known

    def is_called_by(self, host: str) -> bool:
        """Whether a `Host` header names this process; the port does not matter."""
        name = host_name(host)
        return name in self.hosts or (self.is_any_address and _address(name) is not None)


def policy_for(host: str, tokens: Tokens, allowed_hosts: Iterable[str] = ()) -> Policy:
    """The policy of a process that listens on `host`.

    Raises: PolicyError when others could reach it and there are no tokens.
    """
    bound = host_name(host)
    address = _address(bound)
    is_loopback = bound == "localhost" or (address is not None and address.is_loopback)
    if not is_loopback and not tokens.known:
        raise PolicyError(
            f"{host} can be reached from other machines, and there are no tokens: give --tokens FILE, or "
            "listen on 127.0.0.1."
        )
    hosts = LOOPBACK_NAMES | {bound} | {host_name(allowed) for allowed in allowed_hosts}
    return Policy(tokens, hosts, is_any_address=address is not None and address.is_unspecified)


def host_name(host: str) -> str:
    """`LOCALHOST:8080` -> `localhost`, `[::1]:8080` -> `::1`."""
    host = host.strip().lower()
    if host.startswith("["):
        name, bracket, rest = host[1:].partition("]")
        return name if bracket and rest[:1] in ("", ":") else host
    return host if host.count(":") > 1 else host.partition(":")[0]


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
