"""Makes the message classes of messaging.proto and its neighbours: messaging_pb2.py with the types in
messaging_pb2.pyi, and so on.

`python -m grpc_endpoint.generate` writes them beside it, as an editable installation does; a wheel gets them
from its build. They are not in version control: what the compiler writes fits its own version of the library
protobuf and newer ones. Runs before anything is installed, so it imports the standard library only, and
starts the compiler (grpcio-tools).
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).resolve().parent
SOURCES: Final = ("messaging", "health", "reflection")
MADE: Final = tuple(f"{name}_pb2.{suffix}" for name in SOURCES for suffix in ("py", "pyi"))
LIMIT_S: Final = 60.0
VALUES_AT_HAND: Final = """
for _name in DESCRIPTOR.enum_types_by_name:
    vars(globals()[_name]).update(globals()[_name].items())
"""
"""Added to each module: otherwise the library searches a value by its name at each use, for a microsecond and
more, and a call of the endpoint uses a dozen.
"""


class CannotGenerateError(Exception):
    """The compiler is not installed or refused the file; the text has its words."""


def generate(target: Path) -> list[Path]:
    """Write the modules into `target`, each as a whole; return the files. Raises CannotGenerateError."""
    with tempfile.TemporaryDirectory(dir=target) as folder:
        command = [
            *(sys.executable, "-m", "grpc_tools.protoc", f"-I{PACKAGE.parent}"),
            *(f"--python_out={folder}", f"--pyi_out={folder}"),
            *(f"{PACKAGE.name}/{name}.proto" for name in SOURCES),
        ]
        try:
            done = subprocess.run(
                command, cwd=PACKAGE.parent, capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise CannotGenerateError(str(error)) from error
        if done.returncode != 0:
            raise CannotGenerateError(done.stderr.strip() or f"exit code {done.returncode}")
        made = [target / name for name in MADE]
        for path in made:
            source = Path(folder) / PACKAGE.name / path.name
            if path.suffix == ".py":
                with source.open("a", encoding="utf-8") as file:
                    file.write(VALUES_AT_HAND)
            source.replace(path)
    return made


if __name__ == "__main__":
    try:
        generate(PACKAGE)
    except CannotGenerateError as error:
        sys.exit(f"error: {error}")
