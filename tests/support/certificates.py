"""An authority, and certificates that it signed, in a folder."""

from __future__ import annotations

from pathlib import Path

from ledgermq.certificates import KeyPair, issue, make_authority
from sockets.tls import PeerCheck, TlsCredentials, TlsFiles


class TlsPlace:
    """A folder with an authority, and the files of a server and of a client that it signed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = make_authority("test authority")
        self.authority.save(folder / "ca.pem", folder / "ca.key")
        self.add("server", "broker.example")
        self.add("client", "client.example")

    def add(self, name: str, host: str, authority: KeyPair | None = None) -> TlsFiles:
        pair = issue(authority or self.authority, name, (host, "127.0.0.1"), (f"ledgermq://group/{name}",))
        pair.save(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        return self.files(name)

    def files(self, name: str) -> TlsFiles:
        return TlsFiles(self.folder / f"{name}.pem", self.folder / f"{name}.key", self.folder / "ca.pem")

    def server(self, peer_check: PeerCheck = "required") -> TlsCredentials:
        return TlsCredentials(self.files("server"), "server", peer_check)

    def client(self) -> TlsCredentials:
        return TlsCredentials(self.files("client"), "client")
