#!/usr/bin/env bash
# Install the stock rocketmq-client-python 2.0.0 into FOLDER, to be used with PYTHONPATH=FOLDER.
#
# usage: install_python_client.sh FOLDER [PYTHON]
#
# Two packages make it: the ctypes wrapper, and the C++ library it loads. Both are called `rocketmq`, so that one
# target would let the second wipe the first: each gets a target of its own and the library is copied over.
set -euo pipefail

folder=${1:?usage: install_python_client.sh FOLDER [PYTHON]}
python=${2:-python3}
versions="rocketmq-client-python==2.0.0 rocketmq-python-cvs==2.1.0.3"
stamp=$folder/.installed

if [ "$(cat "$stamp" 2>/dev/null || true)" = "$versions" ]; then
    exit 0
fi
if [ "$(uname -s)-$(uname -m)" != Linux-x86_64 ]; then
    echo "librocketmq is built for Linux on x86-64 only; this is $(uname -s) on $(uname -m)." >&2
    exit 3
fi
rm -rf "$folder" "$folder.so"
mkdir -p "$(dirname "$folder")"
"$python" -m pip install --quiet --no-deps --target "$folder" rocketmq-client-python==2.0.0
"$python" -m pip install --quiet --no-deps --target "$folder.so" rocketmq-python-cvs==2.1.0.3
cp "$folder.so/rocketmq/librocketmq.so" "$folder/rocketmq/"
rm -rf "$folder.so"
echo "$versions" > "$stamp"
