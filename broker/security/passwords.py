"""Passwords of users, encrypted for the log: a signature is checked with the password itself, so a hash of it
would not do.

AES-256-GCM with the key of `authKeyPath`, which all nodes of the group have. The user's name is bound to the
ciphertext: one user's cannot be put in place of another's. The text in the log is base64 of a nonce of 12
bytes, the ciphertext and its tag.
"""

import base64
import binascii
import os
import stat
from pathlib import Path
from typing import Final

from broker.config import BrokerConfig, ConfigError

KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_FILE_BYTES_MAX: Final = 4096


class PasswordCipher:
    """Encrypts and decrypts with one key."""

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._aead = AESGCM(key)

    def encrypt(self, username: str, password: str) -> str:
        nonce = os.urandom(_NONCE_BYTES)
        sealed = self._aead.encrypt(nonce, password.encode("utf-8", "replace"), username.encode())
        return base64.b64encode(nonce + sealed).decode()

    def decrypt(self, username: str, encrypted: str) -> bytes | None:
        """None when it was encrypted with another key, or for another user."""
        from cryptography.exceptions import InvalidTag

        try:
            data = base64.b64decode(encrypted, validate=True)
            return self._aead.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], username.encode())
        except (InvalidTag, ValueError):
            return None


def open_cipher(config: BrokerConfig) -> PasswordCipher | None:
    """None when no key is configured. Raises ConfigError: a key is needed and missing, or unusable."""
    problem = missing_key(config, has_others=len(config.peers) > 1) if config.checks_signatures else None
    if problem is not None:
        raise ConfigError(f"authenticationEnabled and authorizationEnabled need {problem}")
    return PasswordCipher(_read_key(Path(config.auth_key_path))) if config.auth_key_path else None


def missing_key(config: BrokerConfig, *, has_others: bool) -> str | None:
    """The key of the configuration that access control needs and that is not there. `has_others`: the group
    has other members than this node.
    """
    if not config.auth_key_path:
        return "authKeyPath, a file with the key that encrypts passwords: `openssl rand -base64 32` makes one"
    if has_others and config.inner_account is None:
        return "innerClientAuthenticationCredentials, the super user that nodes sign as to each other"
    return None


def _read_key(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(_FILE_BYTES_MAX)
    except OSError as error:
        raise ConfigError(f"authKeyPath: {path} cannot be read: {error.strerror or error}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"authKeyPath: {path} is readable by other users: chmod 600 it")
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except binascii.Error:
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigError(f"authKeyPath: {path} does not hold {KEY_BYTES} bytes as base64")
    return key
