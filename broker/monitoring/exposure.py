"""What others could reach or read of this node: how its ports are protected, when its certificates end, and
which of its files other users of the machine can read.

Figures for GET_BROKER_RUNTIME_INFO. The health checks of the admin service judge them, since only they know
what the whole cluster is meant for.
"""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from broker.config import BrokerConfig
from sockets.tls import TlsFilesError, certificate_ends_ms

CHECK_INTERVAL_MS: Final = 60_000
"""Files and certificates are looked at that often at most, however often the figures are requested."""
ENTRIES_MAX: Final = 1_000
"""Files of the store whose modes one check reads: some milliseconds."""
PATHS_MAX: Final = 3
"""Paths that one figure names."""
CERTIFICATE_ENDS: Final = "certificateEndsMs."
"""Prefix of the figures with the Unix time in ms at which a certificate ends; the key of its file follows."""


class Exposure:
    """Of one broker. `now_ms` never goes back."""

    def __init__(self, config: BrokerConfig, now_ms: Callable[[], int]) -> None:
        self._config = config
        self._now_ms = now_ms
        self._checked_at_ms: int | None = None
        # The library that reads certificates takes longer to import than a request may hold the event loop.
        self._checked = self._certificates()

    def figures(self) -> dict[str, str]:
        return self._ports() | self._files()

    def _ports(self) -> dict[str, str]:
        config = self._config
        metrics = f"{config.metrics_address}:{config.metrics_port}" if config.metrics_port else ""
        return {
            "clientBindAddress": config.bind_address,
            "clientTlsMode": config.server_tls.mode_in_force,
            "accessControl": access_control(config),
            "metricsBindAddress": metrics,
        }

    def _files(self) -> dict[str, str]:
        now_ms = self._now_ms()
        if self._checked_at_ms is None or now_ms - self._checked_at_ms >= CHECK_INTERVAL_MS:
            self._checked_at_ms = now_ms
            self._checked = self._certificates() | {"readableByOthers": ", ".join(self._readable())}
        return self._checked

    def _certificates(self) -> dict[str, str]:
        config = self._config
        found = {}
        for key, path, is_authority in (
            ("tlsCertPath", config.tls_certificate, False),
            ("tlsTrustCertPath", config.tls_authorities, True),
            ("replicationTlsCertPath", config.replication_tls_cert, False),
            ("replicationTlsCaPath", config.replication_tls_ca, True),
        ):
            if path is None:
                continue
            try:
                ends_ms = certificate_ends_ms(path)
            except TlsFilesError:
                continue  # between two steps of a replacement
            # A chain needs all of its certificates; of several authorities one is enough.
            found[f"{CERTIFICATE_ENDS}{key}"] = str(max(ends_ms) if is_authority else min(ends_ms))
        return found

    def _readable(self) -> list[str]:
        """Paths of keys, passwords and messages that every user of the machine can read."""
        found = [str(path) for path in secret_files(self._config) if is_readable_by_others(path)]
        for path in readable_below(self._config.store_path_root_dir):
            if len(found) == PATHS_MAX:
                break
            found.append(str(path))
        return found[:PATHS_MAX]


def access_control(config: BrokerConfig) -> str:
    """What is checked of a request now: `off`, `accounts` (as in RocketMQ 4), `authentication` (the
    signature, but no right), `authorization` (both).
    """
    if config.authorization_enabled:
        return "authorization"
    if config.authentication_enabled:
        return "authentication"
    return "accounts" if config.acl_enable else "off"


def secret_files(config: BrokerConfig) -> list[Path]:
    """Files with keys or passwords that the configuration names."""
    found = [config.tls_key or config.tls_certificate, config.replication_tls_key]
    if config.auth_key_path:
        found.append(Path(config.auth_key_path))
    if config.acl_enable or config.migrate_auth:
        found.append(config.acl_path)
    if config.source is not None and (config.init_user or config.inner_account):
        found.append(config.source)
    return [path for path in found if path is not None]


def is_readable_by_others(path: Path) -> bool:
    """Whether every user of the machine can read the file."""
    return _has(path, stat.S_IROTH) and _is_reachable(path)


def readable_below(folder: Path) -> Iterator[Path]:
    """Files below the folder that every user can read, among its first ENTRIES_MAX entries."""
    if not _is_reachable(folder):
        return
    waiting, left = [folder], ENTRIES_MAX
    while waiting:
        at = waiting.pop()
        if not _has(at, stat.S_IXOTH):
            continue
        for path in _entries(at, left):
            left -= 1
            if path.is_dir():
                waiting.append(path)
            elif _has(path, stat.S_IROTH):
                yield path


def _entries(folder: Path, most: int) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry, _ in zip(entries, range(most), strict=False)]
    except OSError:
        return []  # deleted meanwhile


def _is_reachable(path: Path) -> bool:
    """Whether every user can enter all folders above."""
    return all(_has(parent, stat.S_IXOTH) for parent in path.absolute().parents)


def _has(path: Path, bit: int) -> bool:
    try:
        return bool(path.stat().st_mode & bit)
    except OSError:
        return False
