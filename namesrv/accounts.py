"""The accounts of the name server: a TOML file of this user alone.

    [[accounts]]
    access_key = "broker-a"
    secret_key = "…"

    [[accounts]]
    access_key = "operator"
    secret_key = "…"
    admin = true

It is read again when it has changed, so that a secret is replaced without a restart: the new secret is added
as a second account of the same key, those who sign with the key change to it, and the old one is removed.
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from remoting.acl import ACCESS_KEY, AclError, is_signed_with, read_private_toml
from remoting.command import RemotingCommand

FILE_OPTION: Final = "--accounts"
SECRETS_PER_KEY_MAX: Final = 2
"""The present one and its successor. Each costs an HMAC over the request, whose body may have 16 MiB."""
SECRET_CHARACTERS_MIN: Final = 8
_FORM: Final = "[[accounts]] of access_key, secret_key and perhaps admin (true, false), and nothing else"
_FIELDS: Final = frozenset({"access_key", "secret_key"})

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Account:
    """is_admin: it may send the requests of administrators."""

    access_key: str
    secret: bytes = field(repr=False)
    is_admin: bool = False


class Accounts:
    """The accounts in a file. While a changed file cannot be used, those of before stay in force."""

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            AclError: it cannot be used; the text is a sentence without a secret in it.
        """
        self._path = path
        self._seen = self._stamp()
        self._by_key = _by_key(path)

    def signer_of(self, request: RemotingCommand) -> Account | None:
        """The account that signed a request; None: none did."""
        self._read_again()
        known = self._by_key.get(request.ext_fields.get(ACCESS_KEY, ""), ())
        return next((account for account in known if is_signed_with(request, account.secret)), None)

    def _read_again(self) -> None:
        stamp = self._stamp()
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            self._by_key = _by_key(self._path)
        except AclError as error:
            _log.error("the accounts of before stay in force: %s", error)
        else:
            _log.info("%s is read again: %d accounts", self._path, sum(map(len, self._by_key.values())))

    def _stamp(self) -> tuple[int, ...]:
        """Numbers that change with the file. Its mode and the time of its change are among them: a file that
        other users could read is read again when that has ended.
        """
        try:
            found = self._path.stat()
        except OSError:
            return ()
        return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _by_key(path: Path) -> dict[str, tuple[Account, ...]]:
    """Raises AclError."""
    content = read_private_toml(path, FILE_OPTION, _FORM)
    rows = content.get("accounts")
    if content.keys() != {"accounts"} or not isinstance(rows, list) or not rows:
        raise AclError(f"{path} is not a TOML file with {_FORM}.")
    found: dict[str, tuple[Account, ...]] = {}
    for number, row in enumerate(rows, 1):
        account = _account(row, f"{path}, account {number}")
        of_key = (*found.get(account.access_key, ()), account)
        if len(of_key) > SECRETS_PER_KEY_MAX:
            raise AclError(
                f"{path}, account {number}: {account.access_key} has more than {SECRETS_PER_KEY_MAX} secrets."
            )
        found[account.access_key] = of_key
    return found


def _account(row: Any, where: str) -> Account:
    """Raises AclError."""
    if not isinstance(row, dict) or not _FIELDS <= row.keys() <= _FIELDS | {"admin"}:
        raise AclError(f"{where}: it has access_key, secret_key and perhaps admin, and nothing else.")
    key, secret, is_admin = row["access_key"], row["secret_key"], row.get("admin", False)
    if not (isinstance(key, str) and key and isinstance(secret, str) and isinstance(is_admin, bool)):
        raise AclError(f"{where}: access_key and secret_key are texts, admin is true or false.")
    if len(secret) < SECRET_CHARACTERS_MIN:
        raise AclError(f"{where} ({key}): a secret has at least {SECRET_CHARACTERS_MIN} characters.")
    return Account(key, secret.encode(), is_admin)
