# Shared by the scripts of this folder: finds a Python and makes the environment .venv in the checkout.
# To be sourced, with ROOT set to the checkout. Progress goes to stderr; stdout stays the command's own.

# Some images set it, and then each of the thousand Pythons of a run compiles everything that it imports.
unset PYTHONDONTWRITEBYTECODE

say() { printf '%s\n' "$*" >&2; }
fail() { say "error: $*"; exit 1; }

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

# Sets PYTHON to the newest Python of at least 3.11 that has the venv module.
ensure_python() {
  local name
  for name in python3.14 python3.13 python3.12 python3.11 python3; do
    if command -v "$name" >/dev/null 2>&1 && is_new_enough "$name" && "$name" -c 'import ensurepip, venv' 2>/dev/null; then
      PYTHON=$(command -v "$name")
      return 0
    fi
  done
  fail "no Python 3.11 or newer with the venv module was found. Install one (Debian and Ubuntu: apt install python3 python3-venv), then run this again."
}

# Of a text and the contents of files: hash_of TEXT FILE...
hash_of() { "$VENV/bin/python" -c 'import hashlib, sys; print(hashlib.sha256(sys.argv[1].encode() + b"".join(open(path, "rb").read() for path in sys.argv[2:])).hexdigest())' "$@"; }

# Installs into the environment and shows what pip does, its whole output only when it fails.
run_pip() {
  local log="$VENV/install.log"
  if [ -t 2 ]; then
    "$VENV/bin/python" -m pip --disable-pip-version-check "$@" >&2 || fail "pip could not install what is needed; its words stand above. Is the network reachable?"
  else
    "$VENV/bin/python" -m pip --disable-pip-version-check "$@" >"$log" 2>&1 || { cat "$log" >&2; fail "pip could not install what is needed; its words stand above. Is the network reachable?"; }
  fi
}

# ensure_venv [test]: makes .venv and installs the project into it; with `test` also what development needs, in the exact
# versions of requirements-dev.txt (scripts/lock writes it). Does nothing when the dependencies, the C sources, the
# interface of gRPC and the checkout's place are as they were at the last install.
ensure_venv() {
  local group=${1:-} stamp wanted
  VENV="$ROOT/.venv"
  stamp="$VENV/installed-${group:-project}"
  if [ ! -x "$VENV/bin/python" ] || ! is_new_enough "$VENV/bin/python"; then
    ensure_python
    say "Making the environment .venv with $("$PYTHON" --version) ..."
    "$PYTHON" -m venv --clear "$VENV" || fail "the environment $VENV could not be made."
  fi
  wanted=$(hash_of "$ROOT" "$ROOT/pyproject.toml" "$ROOT/requirements-dev.txt" "$ROOT/hatch_build.py" \
    "$ROOT"/native/*.[ch] "$ROOT/native/compiler.py" "$ROOT"/grpc_endpoint/{generate.py,*.proto}) ||
    fail "$ROOT/pyproject.toml, requirements-dev.txt or the sources in $ROOT/native and $ROOT/grpc_endpoint cannot be read."
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
    return 0
  fi
  say "Installing LedgerMQ${group:+ and what its tests need} into .venv (about half a minute, once) ..."
  if [ -n "$group" ]; then
    # pip compiles on one core, and the libraries' own tests too.
    run_pip install --quiet --no-compile --require-hashes --requirement "$ROOT/requirements-dev.txt"
    "$VENV/bin/python" -m compileall -qq -j 0 -x '/tests/' "$VENV/lib" || true   # some files are for other Pythons
    run_pip install --no-deps --no-build-isolation --editable "$ROOT"
  else
    run_pip install --editable "$ROOT"
  fi
  printf "%s\n" "$wanted" | tee "$VENV/installed-project" >"$stamp"
  say "Installed."
}
