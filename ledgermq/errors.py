"""The one error of the command line, and the exit codes other than 0."""

from typing import Final

NOT_DONE: Final = 1
"""Also: the check found an error (`status`, `doctor`)."""
WRONG_USAGE: Final = 2
PARTIAL: Final = 3
"""Some of it: a broker gave no answer, or some parts of a change were done and some not."""
INTERRUPTED: Final = 130
TERMINATED: Final = 143
"""By a SIGTERM, as a shell counts: 128 and the signal's number."""


class UserError(Exception):
    """Ends the command with its text, a sentence, on stderr and with this exit code."""

    def __init__(self, sentence: str, exit_code: int = NOT_DONE) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code
