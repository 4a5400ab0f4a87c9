"""Certificate authorities and the certificates that they sign (X.509), for TLS.

Keys are of the curve P-256: every client of RocketMQ accepts them, and a handshake costs a tenth of one with
RSA. A user who has certificates from elsewhere does not need this module.
"""

import datetime
import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS: Final = 3650
CERTIFICATE_DAYS: Final = 825
"""Days. Some TLS implementations refuse certificates with a longer validity."""
_BEGUN_EARLIER: Final = datetime.timedelta(hours=1)
"""A certificate is valid from this long before now: a peer whose clock is slow would refuse it otherwise."""


class CertificateError(ValueError):
    """A file does not contain the expected certificate or key; the text is a sentence that names the file."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def key_pem(self) -> bytes:
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    def save(self, certificate: Path, key: Path) -> None:
        """Write both, the key first and readable by this user only. Each file is replaced atomically.

        Raises:
            OSError: a file cannot be written.
        """
        replace_file(key, self.key_pem(), 0o600)
        replace_file(certificate, self.certificate_pem(), 0o644)

    @staticmethod
    def load(certificate: Path, key: Path) -> "KeyPair":
        """Raises CertificateError."""
        try:
            loaded = serialization.load_pem_private_key(key.read_bytes(), password=None)
            found = x509.load_pem_x509_certificate(certificate.read_bytes())
        except (OSError, ValueError, TypeError) as error:
            raise CertificateError(f"{certificate} and {key} cannot be loaded: {error}") from None
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise CertificateError(f"{key} is not a key on an elliptic curve")
        return KeyPair(found, loaded)


def make_authority(name: str, days: int = AUTHORITY_DAYS) -> KeyPair:
    """A new, self-signed authority. It may sign certificates, but no other authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        _builder(subject, subject, key, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(is_authority=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return KeyPair(builder.sign(key, hashes.SHA256()), key)


def issue(
    authority: KeyPair,
    common_name: str,
    hosts: tuple[str, ...] = (),
    uris: tuple[str, ...] = (),
    days: int = CERTIFICATE_DAYS,
) -> KeyPair:
    """A certificate for these host names or IP addresses and these URIs, for servers and clients."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    names: list[x509.GeneralName] = [_host(host) for host in hosts]
    names += [x509.UniformResourceIdentifier(uri) for uri in uris]
    builder = (
        _builder(subject, authority.certificate.subject, key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(is_authority=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
            critical=False,
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False
        )
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return KeyPair(builder.sign(authority.key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEGUN_EARLIER)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _key_usage(is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def replace_file(path: Path, data: bytes, mode: int) -> None:
    """A reader sees the old file or the new one, never a part. The mode is set before the bytes are written.

    Raises:
        OSError: the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    side = path.with_name(path.name + ".tmp")
    side.unlink(missing_ok=True)
    with os.fdopen(os.open(side, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    side.replace(path)
