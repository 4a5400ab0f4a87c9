"""Values that must never be shown, logged or audited."""

from typing import Final

MASK: Final = "********"
_SIGNS: Final = (
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "credential",
    "accesskey",
    "privatekey",
    "socksproxy",  # its value has the user and the password
    "initauthenticationuser",  # so has this one
)


def is_secret(key: str) -> bool:
    """Whether the value under this key of a configuration is a secret, by the key's words."""
    plain = "".join(letter for letter in key.lower() if letter.isalnum())
    return any(sign in plain for sign in _SIGNS)


def masked(key: str, value: str | None) -> str | None:
    """The value as it may be shown; an empty or unknown one stays what it is, since it reveals nothing."""
    return MASK if value and is_secret(key) else value
