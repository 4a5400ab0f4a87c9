"""The one error of the command line, and the exit codes other than 0."""

from typing import Final

NOT_DONE: Final = 1
"""The command failed, or a check found an error (`status`, `doctor`)."""
WRONG_USAGE: Final = 2
PARTIAL: Final = 3
"""Done in part: a broker gave no answer, or only some parts of a change were made."""
INTERRUPTED: Final = 130
TERMINATED: Final = 143
"""Ended by SIGTERM: 128 plus the number of the signal, as in a shell."""


class UserError(Exception):
    """Ends the command: its text, a sentence, is printed on stderr; the process ends with `exit_code`."""

    def __init__(self, sentence: str, exit_code: int = NOT_DONE) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code
