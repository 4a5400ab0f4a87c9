"""`python -m native [FLAG …]`: compile the C modules in place; the flags go to the compiler as well."""

import sys

from native.compiler import FOLDER, CannotCompileError, compile_modules

if __name__ == "__main__":
    try:
        for path in compile_modules(FOLDER, sys.argv[1:]):
            print(path.name)
    except CannotCompileError as error:
        sys.exit(f"error: {error}")
