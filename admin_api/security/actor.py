"""Who sends a request, and which role they have."""

from dataclasses import dataclass
from enum import IntEnum


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
