"""A certificate that signs itself, for an endpoint that is started without one.

RocketMQ's clients speak TLS unless they are configured otherwise, and do not check by whom a certificate is
signed. So there is one without any configuration, as in RocketMQ's proxy (tlsTestModeEnable): it keeps others
from reading what is sent, and proves nothing about the server.
"""

import datetime
import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sockets.tls import TlsFiles

VALID_DAYS: Final = 3_650


@dataclass(frozen=True, slots=True)
class Certificate:
    """PEM texts: the chain, and its private key."""

    chain: bytes
    key: bytes

    def in_memory(self) -> TlsFiles:
        """As files that are on no disk, for as long as the process lives: OpenSSL's context reads files only.

        Raises OSError.
        """
        file = os.memfd_create("certificate")
        os.write(file, self.chain + self.key)
        return TlsFiles(Path(f"/proc/self/fd/{file}"))


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
