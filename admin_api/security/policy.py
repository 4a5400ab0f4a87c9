"""Which clients the process serves (tokens, or every local user), by which host names, and with which role.

Tokens are read from a TOML file, or from the environment:

    [[tokens]]
    name = "grafana"
    role = "read"
    token = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

In LEDGERMQ_ADMIN_TOKENS the same is `grafana:read:sha256:9f86…`, several separated by commas. A plain token
may stand instead of its SHA-256; no salt is needed, since tokens are long and random.
"""

import hashlib
import hmac
import ipaddress
import os
import stat
import string
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Final

from sockets.addresses import is_loopback


class Role(IntEnum):
    """Each may do what the ones below it may. READ reads; OPERATE does the daily work that loses nothing by
    design (resetting offsets, sending again, moving a leader); ADMIN also deletes and configures.
    """

    READ = 1
    OPERATE = 2
    ADMIN = 3

    @property
    def label(self) -> str:
        """As in token files and answers."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Actor:
    """`name` is that of the token, or `local` where none are used; `remote` is the address it came from."""

    name: str
    role: Role
    remote: str


ENVIRONMENT_KEY: Final = "LEDGERMQ_ADMIN_TOKENS"
TOKENS_MAX: Final = 1_000
TOKEN_CHARACTERS_MIN: Final = 16
TOKEN_CHARACTERS_MAX: Final = 512
NAME_CHARACTERS_MAX: Final = 64
FILE_BYTES_MAX: Final = 1024 * 1024
_HASHED: Final = "sha256:"
_ROLES: Final = {role.label: role for role in Role}


class TokensError(Exception):
    """The tokens cannot be used; the text is a sentence that names none of them."""


@dataclass(frozen=True, slots=True)
class Token:
    """`digest` is the SHA-256 of the token."""

    name: str
    role: Role
    digest: bytes


@dataclass(frozen=True, slots=True)
class Tokens:
    """All that are known, and a warning about the place that they come from."""

    known: tuple[Token, ...] = ()
    warnings: tuple[str, ...] = ()

    def find(self, presented: str) -> Token | None:
        """The one that was presented. It takes the same time whichever of them it is, or none."""
        digest = hashlib.sha256(presented[:TOKEN_CHARACTERS_MAX].encode()).digest()
        found = None
        for token in self.known:
            if hmac.compare_digest(token.digest, digest):
                found = token
        return found


def load_tokens(path: Path | None, environment: Mapping[str, str]) -> Tokens:
    """From the file, else from the environment, else none. Raises: TokensError."""
    if path is not None:
        return _from_file(path)
    text = environment.get(ENVIRONMENT_KEY, "")
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    rows = []
    for number, entry in enumerate(entries, start=1):
        name, _, rest = entry.partition(":")
        role, _, token = rest.partition(":")
        rows.append(_token(name, role, token, f"{ENVIRONMENT_KEY}, entry {number}"))
    return Tokens(_distinct(rows, ENVIRONMENT_KEY))


def _from_file(path: Path) -> Tokens:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(FILE_BYTES_MAX + 1)
        if len(text) > FILE_BYTES_MAX:
            raise TokensError(f"{path} has more than {FILE_BYTES_MAX} bytes.")
        content = tomllib.loads(text.decode())
    except OSError as error:
        raise TokensError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        # A parser may show the text around the place; that could be a token.
        raise TokensError(f"{path} is no TOML file.") from error
    entries = content.get("tokens")
    if not isinstance(entries, list) or not entries:
        raise TokensError(f"{path} has no [[tokens]].")
    rows, has_plain = [], False
    for number, entry in enumerate(entries, start=1):
        where = f"{path}, token {number}"
        if not isinstance(entry, dict) or entry.keys() != {"name", "role", "token"}:
            raise TokensError(f"{where}: it needs name, role and token, and nothing else.")
        name, role, token = (str(entry[key]) for key in ("name", "role", "token"))
        has_plain |= not token.startswith(_HASHED)
        rows.append(_token(name, role, token, where))
    is_open = bool(mode & (stat.S_IRGRP | stat.S_IROTH))
    warnings = (f"{path} has plain tokens and can be read by others: chmod 600 it, or put hashes.",)
    return Tokens(_distinct(rows, str(path)), warnings if has_plain and is_open else ())


def _token(name: str, role: str, token: str, where: str) -> Token:
    if not 0 < len(name) <= NAME_CHARACTERS_MAX or not name.isprintable():
        raise TokensError(f"{where}: a name has 1 to {NAME_CHARACTERS_MAX} printable characters.")
    if role not in _ROLES:
        raise TokensError(f"{where} ({name}): the role is one of {', '.join(_ROLES)}.")
    if token.startswith(_HASHED):
        digits = token.removeprefix(_HASHED)
        if len(digits) != 64 or not set(digits) <= set(string.hexdigits):
            raise TokensError(f"{where} ({name}): after {_HASHED} stand 64 hexadecimal digits.")
        return Token(name, _ROLES[role], bytes.fromhex(digits))
    if not TOKEN_CHARACTERS_MIN <= len(token) <= TOKEN_CHARACTERS_MAX:
        allowed = f"{TOKEN_CHARACTERS_MIN} to {TOKEN_CHARACTERS_MAX}"
        raise TokensError(f"{where} ({name}): a token has {allowed} characters.")
    return Token(name, _ROLES[role], hashlib.sha256(token.encode()).digest())


def _distinct(tokens: list[Token], where: str) -> tuple[Token, ...]:
    if len(tokens) > TOKENS_MAX:
        raise TokensError(f"{where}: at most {TOKENS_MAX} tokens are kept.")
    for what, keys in (("name", [t.name for t in tokens]), ("token", [t.digest for t in tokens])):
        if len(set(keys)) != len(keys):
            raise TokensError(f"{where}: a {what} occurs twice.")
    return tuple(tokens)


LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})
BODY_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of a request: a message of 4 MiB, as base64 or escaped in JSON, fits."""


class PolicyError(Exception):
    """The process would serve strangers; the text is a sentence."""


@dataclass(frozen=True, slots=True)
class Policy:
    """`hosts`: the names and addresses without port by which it may be called; a page of another name that
    leads here (DNS rebinding) is refused. `is_any_address`: it listens on all, and may be called by any.
    """

    tokens: Tokens = field(default_factory=Tokens)
    hosts: frozenset[str] = LOOPBACK_NAMES
    is_any_address: bool = False
    body_bytes_max: int = BODY_BYTES_MAX

    @property
    def is_open(self) -> bool:
        """Without tokens every client of the loopback address is an administrator."""
        return not self.tokens.known

    def is_called_by(self, host: str) -> bool:
        """Whether a `Host` header names this process; the port does not matter."""
        name = host_name(host)
        return name in self.hosts or (self.is_any_address and _address(name) is not None)


def policy_for(host: str, tokens: Tokens, allowed_hosts: Iterable[str] = ()) -> Policy:
    """The policy of a process that listens on `host`.

    Raises: PolicyError when others could reach it and there are no tokens.
    """
    bound = host_name(host)
    address = _address(bound)
    if not is_loopback(bound) and not tokens.known:
        raise PolicyError(
            f"{host} can be reached from other machines, and there are no tokens: give --tokens FILE, or "
            "listen on 127.0.0.1."
        )
    hosts = LOOPBACK_NAMES | {bound} | {host_name(allowed) for allowed in allowed_hosts}
    return Policy(tokens, hosts, is_any_address=address is not None and address.is_unspecified)


def host_name(host: str) -> str:
    """`LOCALHOST:8080` -> `localhost`, `[::1]:8080` -> `::1`."""
    host = host.strip().lower()
    if host.startswith("["):
        name, bracket, rest = host[1:].partition("]")
        return name if bracket and rest[:1] in ("", ":") else host
    return host if host.count(":") > 1 else host.partition(":")[0]


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
