"""The configuration of a name server at its start, and the switches that an administrator may change while it
runs.
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class NameServerConfig:
    """Fixed for the life of the process.

    host, port: where it listens; port 0 lets the system choose.
    kv_config: the file that keeps the key-value table; without one the table lives in memory only.
    broker_expiry_ms: a broker that has not registered for so long is dropped, unless it requested another
        time.
    expiry_check_interval_ms: period of the one timer that checks for such brokers.
    brokers_max, topics_max, kv_items_max: registrations or items beyond these are refused.
    register_body_bytes_max: a compressed registration may not grow beyond this.
    """

    host: str = "127.0.0.1"
    port: int = 9876
    kv_config: Path | None = None
    broker_expiry_ms: int = 120_000
    expiry_check_interval_ms: int = 5_000
    brokers_max: int = 10_000
    topics_max: int = 200_000
    kv_items_max: int = 10_000
    register_body_bytes_max: int = 64 * 1024 * 1024


@dataclass(slots=True)
class NameServerSwitches:
    """Changed by request 318 and lost at the end of the process. Names and defaults are RocketMQ's.

    order_message_enable: send clients the queues of an ordered topic (`ORDER_TOPIC_CONFIG`) with its route.
    return_order_topic_config_to_broker: send brokers all of them in answers to registrations.
    """

    order_message_enable: bool = False
    return_order_topic_config_to_broker: bool = True
