"""The server's certificate: from files, which are read again when they change, or one that signs itself.

RocketMQ's clients speak TLS unless they are configured otherwise, and do not check by whom a certificate is
signed. So there is one without any configuration, as in RocketMQ's proxy (tlsTestModeEnable): it keeps others
from reading what is sent, and proves nothing about the server.
"""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sockets.tls import TlsFilesError

VALID_DAYS: Final = 3_650
FILE_BYTES_MAX: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Certificate:
    """PEM texts: the chain, its private key, and the authorities of clients' certificates, if these are
    needed.
    """

    chain: bytes
    key: bytes
    client_authorities: bytes | None = None


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """`authorities`: clients must show a certificate that one of them has signed."""

    chain: Path
    key: Path | None = None
    authorities: Path | None = None

    def changed_at(self) -> tuple[int, ...]:
        """Differs when one of the files was replaced. Raises TlsFilesError."""
        try:
            return tuple(path.stat().st_mtime_ns for path in self._paths())
        except OSError as error:
            raise TlsFilesError(f"{error.filename} cannot be read: {error.strerror}") from error

    def load(self) -> Certificate:
        """Raises TlsFilesError."""
        authorities = None if self.authorities is None else _read(self.authorities)
        return Certificate(_read(self.chain), _read(self.key or self.chain), authorities)

    def _paths(self) -> tuple[Path, ...]:
        return tuple(path for path in (self.chain, self.key, self.authorities) if path is not None)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            text = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise TlsFilesError(f"{path} cannot be read: {error.strerror}") from error
    if len(text) > FILE_BYTES_MAX or b"-----BEGIN " not in text:
        raise TlsFilesError(f"{path} is no PEM file")
    return text


def self_signed() -> Certificate:
    """A certificate of this process's own, for localhost; its key is on no disk."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ledgermq")])
    now = datetime.datetime.now(datetime.UTC)
    names: list[x509.GeneralName] = [
        x509.DNSName("localhost"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    ]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    no_password = serialization.NoEncryption()
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, no_password)
    return Certificate(certificate.public_bytes(pem), private)
