"""The certificates of a group's members in one folder, and the authority that signs them.

    ca.pem      certificates of the trusted authorities
    ca.key      private key of the authority that signs; nodes do not need it, so keep it on another machine
    n0.pem, …   certificate of each member, which names it by its URI (`dledger.credentials`)
    n0.key, …   its private key

An authority is replaced in three steps; each must be in force on all members before the next begins. First
the new authority is added to `ca.pem` (`add_authority`), then members get new certificates (`renew`), then
the old authority is removed from `ca.pem` (`remove_old_authorities`). So members always trust each other.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import NameOID

from dledger.credentials import member_uri
from ledgermq.certificates import KeyPair, issue, make_authority, replace_file
from ledgermq.errors import UserError

RENEWED_BEFORE: Final = datetime.timedelta(days=60)
"""`complete` replaces a certificate that expires sooner than this."""
_AUTHORITY: Final = "ca"


class MemberFiles:
    """A folder with the certificates of one group. Its methods raise UserError for files with wrong contents,
    and OSError.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._authorities = folder / f"{_AUTHORITY}.pem"
        self._authority_key = folder / f"{_AUTHORITY}.key"

    def complete(self, group: str, hosts: Mapping[str, tuple[str, ...]]) -> None:
        """Make each certificate that is missing, does not name its member in this group, or expires soon.

        hosts: member -> host names and IP addresses in its certificate.
        """
        if not self._authorities.exists():
            self._save_authority(make_authority(f"LedgerMQ {group}"))
        for node, own in hosts.items():
            uri = member_uri(group, node)
            if not self._is_good(node, uri):
                self._issue(node, own, (uri,))

    @property
    def may_sign(self) -> bool:
        """Whether the key of an authority is here."""
        return self._authority_key.exists()

    def renew(self, *nodes: str) -> list[str]:
        """Make new certificates and keys, with the same names, for these members or for all; return which."""
        found = sorted(path.stem for path in self._folder.glob("*.pem") if path.stem != _AUTHORITY)
        for node in nodes or found:
            names = _names(self._certificate(node))
            addresses = [str(address) for address in names.get_values_for_type(x509.IPAddress)]
            uris = tuple(names.get_values_for_type(x509.UniformResourceIdentifier))
            self._issue(node, (*addresses, *names.get_values_for_type(x509.DNSName)), uris)
        return list(nodes or found)

    def add_authority(self) -> None:
        """A new authority signs from now on; the earlier ones are still trusted."""
        name = self._authority().certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
        self._save_authority(make_authority(str(name)), self._authorities.read_bytes())

    def remove_old_authorities(self) -> None:
        """From now on only the authority that signs is trusted."""
        replace_file(self._authorities, self._authority().certificate_pem(), 0o644)

    def copy_member(self, node: str, target: Path) -> None:
        """Copy the files that one member needs to a folder; no files of other members."""
        for name, mode in ((f"{node}.key", 0o600), (f"{node}.pem", 0o644), (self._authorities.name, 0o644)):
            replace_file(target / name, (self._folder / name).read_bytes(), mode)

    def _issue(self, node: str, hosts: tuple[str, ...], uris: tuple[str, ...]) -> None:
        pair = issue(self._authority(), node, hosts, uris)
        pair.save(self._folder / f"{node}.pem", self._folder / f"{node}.key")

    def _authority(self) -> KeyPair:
        """The authority whose key is in this folder."""
        try:
            key = load_pem_private_key(self._authority_key.read_bytes(), password=None)
            believed = x509.load_pem_x509_certificates(self._authorities.read_bytes())
        except (OSError, ValueError, TypeError) as error:
            raise UserError(f"nothing can be signed in {self._folder}: {error}.") from error
        for certificate in believed:
            if isinstance(key, ec.EllipticCurvePrivateKey) and certificate.public_key() == key.public_key():
                return KeyPair(certificate, key)
        raise UserError(
            f"{self._authority_key} is not the key, on an elliptic curve, of a certificate in "
            f"{self._authorities}."
        )

    def _save_authority(self, authority: KeyPair, earlier: bytes = b"") -> None:
        # First the certificate: if this is interrupted, the key in the folder still belongs to one of them.
        replace_file(self._authorities, authority.certificate_pem() + earlier, 0o644)
        replace_file(self._authority_key, authority.key_pem(), 0o600)

    def _is_good(self, node: str, uri: str) -> bool:
        """Whether the member's files can be used for some time. Without the authority's key nothing can be
        signed here; then the owner of the files renews them, and they count as good.
        """
        if not ((self._folder / f"{node}.pem").exists() and (self._folder / f"{node}.key").exists()):
            return False
        found = self._certificate(node)
        ends_in = found.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
        has_name = uri in _names(found).get_values_for_type(x509.UniformResourceIdentifier)
        return has_name and (ends_in > RENEWED_BEFORE or not self.may_sign)

    def _certificate(self, node: str) -> x509.Certificate:
        path = self._folder / f"{node}.pem"
        try:
            return x509.load_pem_x509_certificate(path.read_bytes())
        except (OSError, ValueError) as error:
            raise UserError(f"{path} is not a certificate as PEM: {error}.") from error


def _names(certificate: x509.Certificate) -> x509.SubjectAlternativeName:
    try:
        return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return x509.SubjectAlternativeName([])
