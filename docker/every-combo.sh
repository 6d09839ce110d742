#!/bin/sh
# Builds the image of each combo, tries it, and removes it: a line of the table in
# docs/reference/images.md each. Needs a Docker daemon, a base, and 20 GB of room for one at a time.
#
# Usage: docker/every-combo.sh BASE [COMBO...]      (default: all of combos.yaml)
#   ROWS_IN=results/every-combo a file a combo with its line; one that is there is not tried again
#   LIMIT_S=3600                a combo that takes longer is given up, and its line says so
#   ROOM_GB=20                  what must be free where the daemon keeps images, before each
set -eu
if [ $# -eq 0 ]; then
    echo "every-combo: name the base, for example nsabench/offline-base:bookworm" >&2
    exit 2
fi
base=$1
shift
python=${PYTHON:-.venv/bin/python}
lines=${ROWS_IN:-results/every-combo}
limit_s=${LIMIT_S:-3600}
room_gb=${ROOM_GB:-20}
if [ $# -eq 0 ]; then
    names=$($python -m nsabench images list --json | $python -c 'import json, sys
print(*json.load(sys.stdin))')
    # shellcheck disable=SC2086 # one word a combo
    set -- $names
fi
store=$(docker info --format '{{.DockerRootDir}}')
mkdir -p "$lines"
work=$(mktemp -d)
chmod 755 "$work"
combo=
unfinished() { # what a build leaves: images without a name that it says it made; not others' builds
    docker images --filter dangling=true --quiet | sort >"$work/after"
    sed -n 's/^ *---> \([0-9a-f]\{12\}\)$/\1/p' "$work/build.log" 2>/dev/null | sort -u >"$work/made"
    comm -13 "$work/before" "$work/after" | comm -12 - "$work/made"
}
clear_up() {
    [ -n "$combo" ] || return 0
    [ -n "$kept" ] || docker image rm "nsabench:$combo" >/dev/null 2>&1 || true
    # One that others are made of goes with them, or stays.
    for image in $(unfinished); do
        docker image rm "$image" >/dev/null 2>&1 || true
    done
    combo=
}
trap 'clear_up; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
cat >"$work/one.yaml" <<'MATRIX'
op: selection_rows
axes: {N: 64, H: 4, D: 64, L: [256]}
implementations: {only: [rows_group]}
MATRIX
shut() { # a container as runs have it, for ten minutes at most
    timeout 600 docker run --rm --read-only --network none --cap-drop ALL \
        --security-opt no-new-privileges --tmpfs /tmp:rw,exec --user 1000:1000 \
        -v "$work:/input:ro" "$@" 2>&1
}
try() { # the line of one combo
    began=$(date +%s)
    code=0
    timeout "$limit_s" "$python" -m nsabench images build "$1" --base "$base" --verbose \
        >"$work/build.log" 2>&1 || code=$?
    if [ "$code" -ne 0 ]; then
        why=$(grep -m 1 '^nsabench:' "$work/build.log" | tail -c 200 || true)
        [ "$code" -ne 124 ] || why="given up after $limit_s s"
        echo "| \`$1\` | failed: ${why:-exit code $code} | | | |"
        return
    fi
    took=$(($(date +%s) - began))
    image=nsabench:$1
    size=$(docker image inspect --format '{{.Size}}' "$image" | awk '{printf "%.1f GB", $1 / 1e9}')
    imports=$(shut --entrypoint python "$image" -c \
        'import torch, triton; print(torch.__version__, triton.__version__)' | tail -n 1)
    compiles=$(shut "$image" preflight /input/one.yaml --arch sm_89 --out /tmp/p.parquet |
        grep -E 'launches, |^nsabench: ' | tail -n 1 | cut -c 1-120 || true)
    echo "| \`$1\` | $took s | $size | $imports | ${compiles:-nothing} |"
}
for name; do
    [ ! -s "$lines/$name.md" ] || continue
    free_gb=$(df --output=avail --block-size=1G "$store" | tail -n 1)
    if [ "$free_gb" -lt "$room_gb" ]; then
        echo "every-combo: $store has ${free_gb} GB free, and an image may need $room_gb;" \
            "make room, then run this again: it goes on with $name" >&2
        exit 3
    fi
    kept=$(docker images --quiet "nsabench:$name") # it was here before, and stays
    docker images --filter dangling=true --quiet | sort >"$work/before"
    combo=$name
    try "$name" >"$lines/.$name.md"
    mv "$lines/.$name.md" "$lines/$name.md" # whole, or not at all
    clear_up
done
echo "| combo | build | size | torch imports | a kernel for sm_89 |"
echo "|---|---|---|---|---|"
for name; do
    cat "$lines/$name.md"
done
