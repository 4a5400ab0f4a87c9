"""RocketMQ's own broker in Java with DLedger as its log: a group of one, with small files."""

from __future__ import annotations

from pathlib import Path

from ledgermq.local.plan import is_free
from tests.spark.stock_broker import PORT_TRIES, StockBroker

FILE_BYTES = 256 << 10
_REPLICATION_PORTS_FROM = 16_000


class StockDLedger(StockBroker):
    """As StockBroker; its log is below `store`."""

    def __init__(self, folder: Path, version: str) -> None:
        super().__init__(folder, version)
        self.store = folder / "store"

    def _write(self, name: str, settings: dict[str, object]) -> Path:
        if name == "broker.conf":
            settings = {key: value for key, value in settings.items() if key != "brokerId"}
            peer = f"n0-127.0.0.1:{_free_port()}"
            settings |= {"enableDLegerCommitLog": "true", "dLegerGroup": "stock", "dLegerPeers": peer}
            settings |= {"dLegerSelfId": "n0", "mappedFileSizeCommitLog": FILE_BYTES}
        return super()._write(name, settings)


def _free_port() -> int:
    ports = range(_REPLICATION_PORTS_FROM, _REPLICATION_PORTS_FROM + PORT_TRIES)
    return next(port for port in ports if is_free(port))
