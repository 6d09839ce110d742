#!/bin/sh
# Adds packages to the environment /opt/nsabench, in a tree of their own that becomes one layer.
# The tree is the same whenever and wherever it is made: no times but one, bytecode that holds none.
#
# Usage: install.sh TREE PIP-INSTALL-ARGUMENT...   (TREE `common` makes the environment first)
set -eu
tree=/trees/$1
target=$tree/opt/nsabench
shift
export PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1
mkdir -p "$target"
if ! [ -e /opt/nsabench ]; then
    python3.11 -m venv /opt/nsabench
    find /opt/nsabench -name __pycache__ -prune -exec rm -r {} +
    rmdir "$target"
    mv /opt/nsabench "$target"
    ln -s "$target" /opt/nsabench
    prefix=
else
    prefix="--prefix $target"
fi
if [ $# -gt 0 ]; then
    # shellcheck disable=SC2086 # no word, or two
    /opt/nsabench/bin/python -m pip install --no-cache-dir --no-compile --no-deps \
        --no-warn-script-location $prefix "$@"
fi
# A worker cannot keep bytecode in an image that is read-only: each would compile torch anew. What is
# for other Pythons does not compile, and that is no fault.
/opt/nsabench/bin/python -m compileall -q -s "$tree" -p / --invalidation-mode unchecked-hash \
    "$target/lib" >/dev/null 2>&1 || true
# The ages of files are in a layer, too. 1980 is the first year that a zip file can hold.
find "$tree" -exec touch -h -d @315532800 {} +
