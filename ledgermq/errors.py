"""The one error of the command line: a sentence for the person at the terminal."""


class UserError(Exception):
    """Ends the command with its text on stderr and exit code 1."""
