"""`python -m native [FLAG …]`: compile the C modules in place, with these flags added for the compiler."""

import sys

from native.compiler import FOLDER, CannotCompileError, compile_modules

if __name__ == "__main__":
    try:
        for path in compile_modules(FOLDER, sys.argv[1:]):
            print(path.name)
    except CannotCompileError as error:
        sys.exit(f"error: {error}")
