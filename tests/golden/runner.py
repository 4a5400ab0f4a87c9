"""Golden scripts: blocks of commands, each followed by all that it printed.

    # Why this script exists.                 a comment, kept as it is
    cluster nodes=3                           commands: a word, plain arguments, key=value arguments
    campaign n0
    ---
    n0 -> n1 VoteRequest ...                  the output, to the next empty line

A script is run from the top; a block whose output differs fails it, unless the file is to be rewritten.
"""

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

SEPARATOR = "---"


@dataclass(frozen=True, slots=True)
class Command:
    """One line of a script. Keys may be given more than once."""

    text: str
    name: str
    words: tuple[str, ...]
    options: tuple[tuple[str, str], ...]

    def get(self, key: str) -> str | None:
        """The last value of the key."""
        return next((value for name, value in reversed(self.options) if name == key), None)

    def number(self, key: str, default: int) -> int:
        value = self.get(key)
        return default if value is None else int(value)

    def without(self, word: str) -> "Command":
        return replace(self, words=tuple(other for other in self.words if other != word))

    def all(self, key: str) -> list[str]:
        return [value for name, value in self.options if name == key]


@dataclass(slots=True)
class Block:
    """Comments, commands and the output they are to give."""

    comments: list[str] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)


Run = Callable[[Command], list[str]]


def parse_command(line: str) -> Command:
    name, *rest = shlex.split(line)
    words = tuple(part for part in rest if "=" not in part)
    pairs = [part.split("=", 1) for part in rest if "=" in part]
    return Command(line, name, words, tuple((key, value) for key, value in pairs))


def parse_script(text: str) -> list[Block]:
    return [parse_block(part.splitlines()) for part in text.strip("\n").split("\n\n") if part.strip()]


def parse_block(lines: list[str]) -> Block:
    block = Block()
    is_output = False
    for line in lines:
        if is_output:
            block.expected.append(line)
        elif line == SEPARATOR:
            is_output = True
        elif line.startswith("#"):
            block.comments.append(line)
        else:
            block.commands.append(parse_command(line))
    return block


def run_block(block: Block, run: Run) -> list[str]:
    return [line for command in block.commands for line in run(command)]


def format_block(block: Block, output: list[str]) -> str:
    lines = [*block.comments, *(command.text for command in block.commands)]
    if block.commands:
        lines += [SEPARATOR, *output]
    return "\n".join(lines)


def check_script(path: Path, run: Run, is_rewriting: bool) -> None:
    """Runs the script at path; fails with the first block that prints something else."""
    written = []
    for block in parse_script(path.read_text()):
        output = run_block(block, run)
        written.append(format_block(block, output))
        if not is_rewriting:
            commands = "; ".join(command.text for command in block.commands)
            assert output == block.expected, f"{path.name}: after {commands}"
    if is_rewriting:
        path.write_text("\n\n".join(written) + "\n")


def scripts_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.txt"))
