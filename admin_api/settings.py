"""The settings of the admin process; every limit it keeps stands here."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """`namesrv` is the host:port of the name server."""

    namesrv: str
    cache_ms: int = 500
    """Answers younger than this are given again."""
    watch_interval_ms: int = 500
    """How often the cluster is looked at while event streams are open."""
    unchanged_interval_ms: int = 1500
    """How often an event stream says that nothing changed."""
    ask_timeout_ms: int = 1000
    """How long one broker or name server may take to answer."""
    asks_in_flight_max: int = 32
    """Requests towards brokers at one time; the rest wait."""
    asks_per_broker_max: int = 4
    """Of these, towards one broker: several that hang together leave places for the others."""
    brokers_cache_ms: int = 500
    """How long the list of brokers, and which of them take writes, is used again."""
    nodes_max: int = 256
    """Nodes remembered and asked; beyond it the one unseen for longest is forgotten."""
    history_interval_ms: int = 5000
    """How often the plots get a sample, whether anybody looks or not."""
    history_keep_ms: int = 3_600_000
    """How far back they go."""
    history_groups_max: int = 64
    """Broker names that are sampled."""
    watchers_max: int = 100
    """Open event streams; one more is answered 503."""
    connections_max: int = 500
    """Open connections, event streams among them; fewer where the process may not open so many files."""
    head_timeout_ms: int = 10_000
    """From the connection, or the first byte of a further request, to the end of its head, and as long before
    that for a TLS handshake;"""
    body_timeout_ms: int = 60_000
    """from there to the end of its body; who takes longer loses the connection."""
    keep_alive_ms: int = 30_000
    """How long a connection stays open without a request."""
    write_stall_ms: int = 30_000
    """How long a client may take nothing of what it is sent."""
    costly_burst: int = 30
    """Expensive queries of one client at once, and"""
    costly_per_s: float = 5.0
    """on average; one more is answered 429."""
