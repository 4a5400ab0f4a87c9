"""Settings of the admin process, with all its limits."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from remoting.client.protocol import split_address
from remoting.client.routes import name_server_addresses
from remoting.client.tls import ClientTls
from remoting.errors import ConnectFailedError

QUERIES_KEY: Final = "LEDGERMQ_ADMIN_QUERIES"
"""Of the environment: the bound on expensive queries, as in `300/30`."""
_QUERIES: Final = re.compile(r"([1-9][0-9]{0,8})/([1-9][0-9]{0,8})", re.ASCII)


class SettingsError(Exception):
    """A setting that cannot be used; the text is a sentence."""


@dataclass(frozen=True, slots=True)
class Settings:
    """`namesrv` is the host:port of the name server; several are separated by `;`. Raises: SettingsError."""

    namesrv: str
    tls: ClientTls | None = None
    """How brokers and name servers are spoken to; None: as the environment says."""
    cache_ms: int = 500
    """Answers younger than this are given again."""
    watch_interval_ms: int = 500
    """How often the cluster is read while event streams are open."""
    unchanged_interval_ms: int = 1500
    """How often an event stream sends a comment when nothing changed."""
    ask_timeout_ms: int = 1000
    """How long one broker or name server may take to answer."""
    asks_in_flight_max: int = 32
    """Requests towards brokers at one time; the rest wait."""
    asks_per_broker_max: int = 4
    """Of these, towards one broker: several that hang together leave places for the others."""
    brokers_cache_ms: int = 500
    """How long the list of brokers, and which of them take writes, is used again."""
    nodes_max: int = 256
    """Nodes remembered and asked; beyond it the one unseen for longest is dropped."""
    history_interval_ms: int = 5000
    """How often the plots get a sample, with or without viewers."""
    history_keep_ms: int = 3_600_000
    """How far back they go."""
    history_groups_max: int = 64
    """Broker names that are sampled."""
    watchers_max: int = 100
    """Open event streams; one more is answered 503."""
    connections_max: int = 500
    """Open connections, event streams included; while more are open, requests are answered 503. Fewer where
    the process may not open so many files."""
    keep_alive_ms: int = 30_000
    """How long a connection stays open between two requests."""
    costly_burst: int = 300
    """Expensive queries of one client in a row, and"""
    costly_per_s: float = 30.0
    """on average; one more is answered 429. A person who types five commands a second does not get there."""
    costly_at_once: int = 8
    """Of them under way for one client, and"""
    costly_at_once_max: int = 24
    """for all; one more waits for its turn,"""
    costly_wait_ms: int = 10_000
    """so long at most, and is answered 429 then."""

    def __post_init__(self) -> None:
        name_servers_of(self.namesrv)

    @property
    def name_servers(self) -> tuple[str, ...]:
        """The addresses in `namesrv`."""
        return name_servers_of(self.namesrv)


def name_servers_of(text: str) -> tuple[str, ...]:
    """The addresses in `host:port;host:port`, each once. Raises: SettingsError."""
    addresses = tuple(dict.fromkeys(name_server_addresses(text)))
    if not addresses:
        raise SettingsError("No name server is given: host:port, or several, separated by `;`.")
    for address in addresses:
        try:
            _, port = split_address(address)
        except ConnectFailedError:
            port = 0
        if not 0 < port < 65_536:
            raise SettingsError(f"The name server {address[:100]!r} is not host:port.")
    return addresses


def with_environment(settings: Settings, environment: Mapping[str, str]) -> Settings:
    """The settings with what the environment overrides. Raises: SettingsError."""
    text = environment.get(QUERIES_KEY)
    if text is None:
        return settings
    found = _QUERIES.fullmatch(text.strip())
    if found is None:
        raise SettingsError(
            f"{QUERIES_KEY} is {text[:100]!r}; it has two numbers, expensive queries in a row and those a "
            "second: 300/30."
        )
    return replace(settings, costly_burst=int(found[1]), costly_per_s=float(found[2]))
