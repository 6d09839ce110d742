#!/bin/sh
# Builds the image of each combo, tries it, and removes it: a line of the table in
# docs/reference/images.md each. Needs a Docker daemon, a base, and 20 GB of room for one at a time.
#
# Usage: docker/every-combo.sh BASE [COMBO...]       (default: all of combos.yaml)
set -u
base=$1
shift
python=${PYTHON:-.venv/bin/python}
if [ $# -eq 0 ]; then
    names=$($python -m nsabench images list --json |
        $python -c 'import json, sys; print(*json.load(sys.stdin))')
    # shellcheck disable=SC2086 # one word a combo
    set -- $names
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
cat >"$work/one.yaml" <<'MATRIX'
op: selection_rows
axes: {N: 64, H: 4, D: 64, L: [256]}
implementations: {only: [rows_group]}
MATRIX
shut() { # a container as runs have it
    docker run --rm --read-only --network none --cap-drop ALL --security-opt no-new-privileges \
        --tmpfs /tmp:rw,exec --user 1000:1000 -v "$work:/input:ro" "$@"
}
echo "| combo | build | size | torch imports | a kernel for sm_89 | verify |"
echo "|---|---|---|---|---|---|"
for combo; do
    began=$(date +%s)
    if ! $python -m nsabench images build "$combo" --base "$base" --evidence "$work" \
        >"$work/build.log" 2>&1; then
        echo "| \`$combo\` | failed: $(grep -m 1 '^nsabench:' "$work/build.log" | tail -c 200) | | | | |"
        continue
    fi
    took=$(($(date +%s) - began))
    image=nsabench:$combo
    size=$(docker image inspect --format '{{.Size}}' "$image" | awk '{printf "%.1f GB", $1 / 1e9}')
    imports=$(shut --entrypoint python "$image" -c \
        'import torch, triton; print(torch.__version__, triton.__version__)' 2>&1 | tail -n 1)
    compiles=$(shut "$image" preflight /input/one.yaml --arch sm_89 --out /tmp/p.parquet 2>&1 |
        grep -E 'launches, |^nsabench: ' | tail -n 1 | cut -c 1-120)
    verified=$($python -m nsabench images verify "$combo" \
        --provenance "$work/$combo.provenance.json" >"$work/verify.log" 2>&1 &&
        echo ok || grep -m 1 FAILED "$work/verify.log")
    echo "| \`$combo\` | $took s | $size | $imports | $compiles | $verified |"
    docker image rm "$image" >/dev/null
    docker image prune --force >/dev/null
done
