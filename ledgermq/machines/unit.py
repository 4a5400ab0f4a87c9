"""systemd: the unit of a machine, and how its process says that it is ready (sd_notify(3))."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from ledgermq.local.supervisor import Limits

UNIT_FILE: Final = "ledgermq.service"
LIMITS: Final = Limits(stop_s=20.0)
STAGES: Final = 3
"""Admin and gRPC endpoint, then the nodes, which hand leadership over, then the name server."""
STOP_S: Final = int(STAGES * LIMITS.stop_s) + 15
"""After this systemd kills what is left."""
NOTIFY_LIMIT_S: Final = 1.0
USER: Final = "ledgermq"


def unit_text(name: str, home: Path, program: Path) -> str:
    """The file ledgermq.service of one machine."""
    return f"""\
[Unit]
Description=LedgerMQ, machine {_escaped(name)}
Wants=network-online.target
After=network-online.target
# However often it ends: systemd shall start it again.
StartLimitIntervalSec=0

[Service]
Type=notify
User={USER}
Group={USER}
ExecStart={_quoted(program)} machine up --home {_quoted(home)}
Restart=always
RestartSec=2
# Ready when all processes listen: a node first reads its log.
TimeoutStartSec=infinity
# SIGTERM only to the supervisor, which stops its processes in their order; SIGKILL to whatever is left.
KillMode=mixed
TimeoutStopSec={STOP_S}
LimitNOFILE=1048576
UMask=0077
ReadWritePaths={_quoted(home)}
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
NoNewPrivileges=yes
CapabilityBoundingSet=
SystemCallArchitectures=native

[Install]
WantedBy=multi-user.target
"""


def _escaped(text: object) -> str:
    return str(text).replace("\\", "\\\\").replace("%", "%%")


def _quoted(path: Path) -> str:
    """As a word of a unit: `%` begins a specifier, `$` a variable."""
    text = _escaped(path).replace('"', '\\"').replace("$", "$$")
    return text if text.replace("/", "").replace("-", "").replace(".", "").isalnum() else f'"{text}"'


def notify(state: str, environment: Mapping[str, str] = os.environ) -> None:
    """Tell the service manager, if one started this process: it named a socket."""
    address = environment.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as there, suppress(OSError):
        there.settimeout(NOTIFY_LIMIT_S)
        there.connect(f"\0{address[1:]}" if address.startswith("@") else address)
        there.send(state.encode())
