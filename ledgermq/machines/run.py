"""`ledgermq machine up`: what belongs on this machine, in the foreground, started again when it ends."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ledgermq.errors import UserError
from ledgermq.local.foreground import Foreground, forget_tls_of_others, locked
from ledgermq.local.node_files import namesrv_tls_options
from ledgermq.local.plan import NAME_SERVER, require_free
from ledgermq.local.processes import (
    ADMIN_NICE,
    ADMIN_STAGE,
    GRPC_STAGE,
    NAMESRV_STAGE,
    NODE_STAGE,
    AdminOptions,
    GrpcOptions,
    namesrv_argv,
    node_argv,
)
from ledgermq.local.supervisor import Command, Limits
from ledgermq.machines.folders import CONFIG, read_config
from ledgermq.machines.plan import MACHINE_FILE, Machine, load_machine
from ledgermq.machines.unit import LIMITS, notify
from ledgermq.output import remark
from sockets.listening import bound_now

LOCK_FILE: Final = "machine.lock"
FILE_INTERVAL_S: Final = 1.0
"""How often machine.toml is looked at."""
ADMIN: Final = "admin"
GRPC: Final = "grpc"


def up(home: Path, *, has_log_files: bool) -> None:
    """Run until a signal. `has_log_files`: each process writes to HOME/logs, else all where this one does.

    Raises: UserError.
    """
    os.umask(0o077)  # other users of the machine must not read messages and logs; child processes inherit it
    home = home.absolute()
    machine = load_machine(home)
    _require_files(home, machine)
    nodes = {node: read_config(home / node / CONFIG).listen_port for node in machine.nodes}
    with locked(home, what=f"machine {machine.name}", command="ledgermq machine up", file_name=LOCK_FILE):
        _require_own_address(home, machine)
        ports = machine.ports(nodes)
        here = {port: what for port, what in ports.items() if port == machine.admin_port}
        require_free(here, machine.admin_address)
        require_free({port: what for port, what in ports.items() if port not in here}, machine.address)
        forget_tls_of_others()
        asyncio.run(MachineProcesses(machine, nodes, has_log_files=has_log_files).run())


def _require_files(home: Path, machine: Machine) -> None:
    """Raises: UserError."""
    if home.resolve() != machine.home.resolve():
        raise UserError(
            f"the files in {home} name {machine.home} as the folder of machine {machine.name}: copy them "
            "there, or make them by `ledgermq cluster init --home`."
        )
    names = (f"{name}.{kind}" for name in machine.certified for kind in ("pem", "key"))
    for path in (machine.certificates / name for name in ("ca.pem", *names)):
        try:
            path.read_bytes()
        except OSError as error:
            raise UserError(
                f"{path} cannot be read: {error.strerror}. `ledgermq cluster init` made it in the folder of "
                f"machine {machine.name}."
            ) from error


def _require_own_address(home: Path, machine: Machine) -> None:
    """Raises: UserError."""
    try:
        bound_now(machine.address, 0).close()
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise UserError(f"{machine.address} cannot be listened on: {error.strerror}.") from error
        raise UserError(
            f"{machine.address} is no address of this machine: {home} has the files of machine "
            f"{machine.name}, which belong on another one."
        ) from error


class MachineProcesses:
    """`nodes`: each with its port for clients."""

    def __init__(
        self, machine: Machine, nodes: Mapping[str, int], *, has_log_files: bool, limits: Limits = LIMITS
    ) -> None:
        self._machine = machine
        self._nodes = nodes
        self._logs = machine.home / "logs" if has_log_files else None
        self._foreground = Foreground(remark, restart=True, limits=limits)

    async def run(self) -> None:
        """One line on stdout once all listen. Other machines are not waited for."""
        await self._foreground.run(self._start_and_wait, self._on_ready, self._follow)

    async def _follow(self) -> None:
        """Nodes come and go with their names in machine.toml; other changes need a restart. It may be there
        before the other files, which are copied: then it is looked at again.
        """
        path = self._machine.home / MACHINE_FILE
        seen_ns, said = path.stat().st_mtime_ns, ""
        while True:
            await asyncio.sleep(FILE_INTERVAL_S)
            try:
                changed_ns = path.stat().st_mtime_ns
                if changed_ns != seen_ns:
                    await self._become(load_machine(self._machine.home))
            except (UserError, OSError) as error:
                if str(error) != said:
                    said = str(error)
                    remark(f"{path} has changed and cannot be followed yet: {said}")
            else:
                seen_ns, said = changed_ns, ""

    async def _become(self, machine: Machine) -> None:
        """Raises: UserError, before anything is changed."""
        _require_files(self._machine.home, machine)
        nodes = {node: read_config(machine.home / node / CONFIG).listen_port for node in machine.nodes}
        machine.ports(nodes)
        gone, new = self._nodes.keys() - nodes.keys(), nodes.keys() - self._nodes.keys()
        self._machine, self._nodes = machine, nodes
        for node in sorted(gone):
            await self._foreground.stop_one(node)
            print(f"REMOVED {json.dumps({'node': node})}", flush=True)
        for command in self.commands():
            if command.name in new:
                await self._foreground.start(command)
                pid = self._foreground.pids[command.name]
                print(f"ADDED {json.dumps({'node': command.name, 'pid': pid})}", flush=True)

    async def _start_and_wait(self) -> None:
        for command in self.commands():
            await self._foreground.start(command)
        for host, port in self._listening().values():
            # A process that ends instead is started again: there is nothing to give up.
            await self._foreground.wait_until_listening(host, port, lambda: None)

    def _listening(self) -> dict[str, tuple[str, int]]:
        machine = self._machine
        ports = {
            NAME_SERVER: (machine.address, machine.namesrv_port),
            **{node: (machine.address, port) for node, port in self._nodes.items()},
            ADMIN: (machine.admin_address, machine.admin_port),
            GRPC: (machine.address, machine.grpc_port),
        }
        return {name: (host, port) for name, (host, port) in ports.items() if port}

    def _on_ready(self) -> None:
        pids = self._foreground.pids
        listening = {
            name: {"pid": pids[name], "address": f"{host}:{port}"}
            for name, (host, port) in self._listening().items()
        }
        print(f"READY {json.dumps({'machine': self._machine.name, 'processes': listening})}", flush=True)
        notify("READY=1")

    def commands(self) -> list[Command]:
        """In the order of their start."""
        machine = self._machine
        nodes = [
            self._command(node, node_argv(machine.home / node / CONFIG), NODE_STAGE) for node in self._nodes
        ]
        return [
            *([self._namesrv()] if machine.namesrv_port else []),
            *nodes,
            *([self._command(ADMIN, self._admin_argv(), ADMIN_STAGE)] if machine.admin_port else []),
            *([self._command(GRPC, self._grpc_argv(), GRPC_STAGE)] if machine.grpc_port else []),
        ]

    def _command(self, name: str, argv: tuple[str, ...], stage: int) -> Command:
        return Command(name, argv, self._logs and self._logs / f"{name}.log", stage)

    def _namesrv(self) -> Command:
        machine = self._machine
        mode = "permissive" if machine.client_tls == "disabled" else machine.client_tls
        argv = (
            *namesrv_argv(machine.address, machine.namesrv_port, machine.home / NAME_SERVER),
            *namesrv_tls_options(machine.certificates, machine.namesrv_member, machine.known_brokers(), mode),
        )
        return self._command(NAME_SERVER, argv, NAMESRV_STAGE)

    def _admin_argv(self) -> tuple[str, ...]:
        machine = self._machine
        tokens = machine.home / ADMIN / "tokens.toml"
        options = AdminOptions(
            machine.namesrv_addr,
            machine.admin_address,
            machine.admin_port,
            tokens if tokens.exists() else None,
            machine.home / ADMIN / "audit.jsonl",
            nice=ADMIN_NICE,
            broker_tls_ca=self._client_authorities(),
        )
        return tuple(options.argv())

    def _grpc_argv(self) -> tuple[str, ...]:
        """With TLS for clients it shows the certificate of the machine's first node."""
        machine, authorities = self._machine, self._client_authorities()
        own = machine.certificates / machine.certified[0]
        options = GrpcOptions(
            machine.namesrv_addr,
            machine.address,
            machine.grpc_port,
            "permissive" if authorities is None else machine.client_tls,
            None if authorities is None else own.with_name(f"{own.name}.pem"),
            None if authorities is None else own.with_name(f"{own.name}.key"),
            broker_tls_ca=authorities,
            numbers={"--metrics-port": machine.grpc_metrics_port},
        )
        return tuple(options.argv())

    def _client_authorities(self) -> Path | None:
        """None: clients speak plain text."""
        machine = self._machine
        return None if machine.client_tls == "disabled" else machine.certificates / "ca.pem"
