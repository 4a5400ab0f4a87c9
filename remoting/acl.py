"""Signatures of requests (RocketMQ's `AclClientRPCHook`, `AclUtils`): made here for brokers whose access
control is on, and checked by LedgerMQ's own.

The values of all ext fields in the order of their names, and the body, are signed with HMAC-SHA1.
"""

import binascii
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from remoting.command import RemotingCommand

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"
"""Names of the ext fields (`SessionCredentials`)."""
FILE_VARIABLE: Final = "LEDGERMQ_ACL_FILE"
VARIABLES: Final = {
    "access_key": "LEDGERMQ_ACCESS_KEY",
    "secret_key": "LEDGERMQ_SECRET_KEY",
    "security_token": "LEDGERMQ_SECURITY_TOKEN",
}
"""By their names in the file."""
_FILE_BYTES_MAX: Final = 64 * 1024
_LARGE_BYTES: Final = 64 * 1024
_UNSIGNED: Final = "_UNIQUE_KEY_QUERY"
_V4_9_3: Final = 399
"""RocketMQ 4 leaves the field _UNSIGNED out of what it checks, RocketMQ 5 only for clients up to this one."""


class AclError(ValueError):
    """The keys are unreadable or incomplete; the text is a sentence without a secret in it."""


@dataclass(frozen=True, slots=True)
class Signer:
    """One account of a cluster's access control. Its secrets are in no text of it."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def sign(self, command: RemotingCommand) -> None:
        """Adds the fields; a command that is sent again is signed again."""
        fields = command.ext_fields
        fields[ACCESS_KEY] = self.access_key
        if self.security_token is not None:
            fields[SECURITY_TOKEN] = self.security_token
        fields.pop(SIGNATURE, None)
        if _UNSIGNED in fields:
            command.version = min(command.version, _V4_9_3)
        fields[SIGNATURE] = signature_of(command, self.secret_key.encode()).decode()


GRPC_USER: Final = "LEDGERMQ_GRPC_USER"
GRPC_SIGNED: Final = "LEDGERMQ_GRPC_SIGNED"
GRPC_SIGNATURE: Final = "LEDGERMQ_GRPC_SIGNATURE"
GRPC_HOST: Final = "LEDGERMQ_GRPC_HOST"
GRPC_PORT: Final = "LEDGERMQ_GRPC_PORT"
"""Ext fields by which the gRPC endpoint says for which client it asks. It signs them with its own account."""


@dataclass(frozen=True, slots=True)
class GrpcProof:
    """What a gRPC client signed its call with: HMAC-SHA1 of a text, its time, as hexadecimal digits. Without
    a user it has signed nothing, and only its address is known.
    """

    user: str
    signed: str
    signature: str = field(repr=False)
    host: str = ""
    """Where the client is: its address, without the port."""
    port: str = field(default="", compare=False)
    """Of its connection to the endpoint: another connection proves the same."""

    def ext_fields(self) -> dict[str, str]:
        where = {GRPC_HOST: self.host, GRPC_PORT: self.port} if self.port else {GRPC_HOST: self.host}
        if not self.user:
            return where
        return {GRPC_USER: self.user, GRPC_SIGNED: self.signed, GRPC_SIGNATURE: self.signature, **where}

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> "GrpcProof | None":
        """What the endpoint has added to a request."""
        user = fields.get(GRPC_USER)
        if user is None:
            return None
        signed, signature = fields.get(GRPC_SIGNED, ""), fields.get(GRPC_SIGNATURE, "")
        return cls(user, signed, signature, fields.get(GRPC_HOST, ""))

    def is_of(self, secret: bytes) -> bool:
        """Whether the owner of this secret made it. Takes as long for every wrong one."""
        import hmac

        made = hmac.new(secret, self.signed.encode("utf-8", "replace"), "sha1").hexdigest()
        return hmac.compare_digest(made.encode(), self.signature.lower().encode("utf-8", "replace"))


def signature_of(command: RemotingCommand, secret: bytes) -> bytes:
    """The signature that a request of the owner of this secret has."""
    import hmac  # it costs 5 ms with its libraries, which a command without keys need not spend

    fields = command.ext_fields
    left_out = (SIGNATURE, _UNSIGNED) if command.version <= _V4_9_3 else (SIGNATURE,)
    values = [fields[name] for name in sorted(fields) if name not in left_out]
    signed = "".join(values).encode("utf-8", "replace")
    if len(command.body) < _LARGE_BYTES:
        return binascii.b2a_base64(hmac.digest(secret, signed + command.body, "sha1"), newline=False)
    made = hmac.new(secret, signed, "sha1")
    made.update(command.body)  # not copied: it may have 16 MiB
    return binascii.b2a_base64(made.digest(), newline=False)


def is_signed_with(command: RemotingCommand, secret: bytes) -> bool:
    """Whether the owner of this secret signed the request. Takes as long for every wrong signature."""
    import hmac

    claimed = command.ext_fields.get(SIGNATURE, "").encode("utf-8", "replace")
    return hmac.compare_digest(signature_of(command, secret), claimed)


def signer_from(environment: Mapping[str, str]) -> Signer | None:
    """The account in the environment, or in a TOML file whose path is there; None: requests are not signed.

    Raises: AclError.
    """
    path = environment.get(FILE_VARIABLE)
    if path:
        found, source = _read(Path(path)), path
    else:
        found = {name: environment[key] for name, key in VARIABLES.items() if environment.get(key)}
        source = "the environment"
    if not found:
        return None
    for name in ("access_key", "secret_key"):
        if name not in found:
            raise AclError(
                f"{source} has no {name if path else VARIABLES[name]}, which access control needs."
            )
    return Signer(found["access_key"], found["secret_key"], found.get("security_token"))


def _read(path: Path) -> dict[str, str]:
    form = f"{', '.join(VARIABLES)} and nothing else"
    found = read_private_toml(path, FILE_VARIABLE, form)
    if not found.keys() <= VARIABLES.keys():
        raise AclError(f"{path} is not a TOML file with {form}.")
    if not all(isinstance(value, str) and value for value in found.values()):
        raise AclError(f"{path} has a value that is not a string.")
    return found


def read_private_toml(path: Path, named_by: str, form: str) -> dict[str, Any]:
    """The content of a file with secrets, of 64 KiB at most.

    named_by: what its path was given by. form: what should be in it.

    Raises:
        AclError: it cannot be read, is no TOML, or other users can read it.
    """
    import tomllib

    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(_FILE_BYTES_MAX + 1)
        found = tomllib.loads(text.decode()) if len(text) <= _FILE_BYTES_MAX else None
    except OSError as error:
        raise AclError(f"{path} ({named_by}) cannot be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError):
        found = None  # the error's own words would quote the file
    if found is None:
        raise AclError(f"{path} is not a TOML file with {form}.") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise AclError(f"{path} has a secret and is readable by other users: chmod 600 it.")
    return found
