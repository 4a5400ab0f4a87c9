"""What shows that somebody saw the preview of a change: a MAC over it, so that between preview and change
nothing is kept but which confirmations are used up.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import orjson

CONFIRMATION_TTL_S: Final = 300
CONFIRMATIONS_USED_MAX: Final = 10_000
"""Remembered until they expire; with more in five minutes no further confirmation is taken."""


@dataclass(slots=True)
class Confirmations:
    """Hands out and takes back confirmations. `now_s` is Unix time.

    `seen` is what was confirmed, as JSON can hold it: the same for the same change in the same situation.
    """

    now_s: Callable[[], float]
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    used: dict[str, int] = field(default_factory=dict)

    def issue(self, seen: object, who: str) -> str:
        expires_s = int(self.now_s()) + CONFIRMATION_TTL_S
        nonce = secrets.token_hex(8)
        return f"{expires_s}.{nonce}.{self._mac(seen, who, expires_s, nonce)}"

    def refusal(self, confirmation: str, seen: object, who: str) -> str | None:
        """Why the confirmation does not hold for this, or None, and then it is used up."""
        expires, _, rest = confirmation.partition(".")
        nonce, _, mac = rest.partition(".")
        if not (expires.isascii() and expires.isdigit() and len(expires) <= 12):
            return "this is no confirmation"
        now_s = self.now_s()
        self.used = {known: until_s for known, until_s in self.used.items() if until_s > now_s}
        if int(expires) <= now_s:  # from then on its use is not remembered
            return "the confirmation has expired"
        if not hmac.compare_digest(mac.encode(), self._mac(seen, who, int(expires), nonce).encode()):
            return "the situation changed since the preview"
        if nonce in self.used:  # the MAC covers it as it stands; its time has several spellings (01300, 1300)
            return "the confirmation was used already"
        if len(self.used) >= CONFIRMATIONS_USED_MAX:
            return f"{CONFIRMATIONS_USED_MAX} confirmations were used in {CONFIRMATION_TTL_S} s; wait"
        self.used[nonce] = int(expires)
        return None

    def _mac(self, seen: object, who: str, expires_s: int, nonce: str) -> str:
        signed = orjson.dumps([who, expires_s, nonce, seen])
        return hmac.new(self.key, signed, hashlib.sha256).hexdigest()
