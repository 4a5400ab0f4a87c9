"""The certificates of a local cluster: DIR/certificates has an authority and what it signed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ledgermq.certificates import CertificateError, KeyPair, issue, make_authority
from ledgermq.errors import UserError
from ledgermq.local.plan import HOST

FOLDER: Final = "certificates"
_HOSTS: Final = (HOST, "localhost")


class Certificates:
    """Files of one folder: `ca.pem`, `ca.key`, and for each process `<name>.pem` and `<name>.key`."""

    def __init__(self, data_dir: Path) -> None:
        self.folder = data_dir / FOLDER

    @property
    def authority(self) -> Path:
        return self.folder / "ca.pem"

    def certificate(self, name: str) -> Path:
        return self.folder / f"{name}.pem"

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    def make(self, names: Sequence[str]) -> None:
        """Make what is not there yet. Raises: UserError."""
        try:
            authority = self._authority()
            for name in names:
                if not self.certificate(name).exists() or not self.key(name).exists():
                    issue(authority, name, _HOSTS).save(self.certificate(name), self.key(name))
        except OSError as error:
            raise UserError(
                f"{error.filename or self.folder} cannot be written: {error.strerror}."
            ) from error
        except CertificateError as error:
            raise UserError(f"{error}.") from error

    def _authority(self) -> KeyPair:
        if self.authority.exists():
            return KeyPair.load(self.authority, self.key("ca"))
        made = make_authority("LedgerMQ local cluster")
        made.save(self.authority, self.key("ca"))
        return made
