"""`ledgermq admin`: the web page and HTTP interface, for a cluster that runs somewhere."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ledgermq.cluster_commands import PYTHON_MODULE


@dataclass(frozen=True, slots=True)
class AdminOptions:
    """As `python -m admin_api` has them."""

    namesrv: str
    host: str
    port: int
    tokens: Path | None = None
    audit: Path | None = None
    allowed_hosts: Sequence[str] = ()
    tls_cert: Path | None = None
    tls_key: Path | None = None
    nice: int = 0

    def argv(self) -> list[str]:
        files = {
            "--tokens": self.tokens,
            "--audit": self.audit,
            "--tls-cert": self.tls_cert,
            "--tls-key": self.tls_key,
        }
        return [
            *(*PYTHON_MODULE, "admin_api", "--namesrv", self.namesrv),
            *("--host", self.host, "--port", str(self.port), "--nice", str(self.nice)),
            *(part for option, path in files.items() if path is not None for part in (option, str(path))),
            *(part for name in self.allowed_hosts for part in ("--allowed-host", name)),
        ]


def admin(options: AdminOptions) -> None:
    """Becomes the admin process, in the foreground; it does not return."""
    argv = options.argv()
    os.execv(argv[0], argv)
