#!/bin/sh
# Measures a plan on Slurm, waits for the merged run, keeps it, and holds it to an earlier one.
#
# Usage: nightly.sh MATRIX SHARDS KEPT ARCHIVE
#   KEPT     the run that others are held to; the first night makes it
#   ARCHIVE  where runs are kept, a folder or s3://BUCKET/PREFIX
#   LIMIT_S=43200, EVERY_S=60: how long it waits at most, and between two looks
# Exits with 0, with 1 where something regressed, and with 3 where no run was merged in time. Begun
# again on the same day for the same matrix it waits for the same fleet; where nothing of that is
# queued, it is submitted again.
set -eu
matrix=$1
shards=$2
kept=$3
archive=$4
fleet=fleets/$(date -u +%F)-$(printf %s "$matrix" | tr -c 'A-Za-z0-9._-' -)
until=$(($(date +%s) + ${LIMIT_S:-43200}))
if ! [ -d "$fleet" ]; then
    nsabench fleet slurm "$matrix" --shards "$shards" --out "$fleet" --submit
elif ! nsabench fleet status "$fleet" --json | grep -qE '"merged": true|"queued": "[^"]'; then
    nsabench fleet submit "$fleet" # its submission failed, or what was submitted ended
fi
until nsabench fleet status "$fleet" --json | grep -q '"merged": true'; do
    if [ "$(date +%s)" -ge "$until" ]; then
        echo "nightly: $fleet was not merged in time" >&2
        nsabench fleet status "$fleet" >&2
        exit 3
    fi
    sleep "${EVERY_S:-60}"
done
nsabench archive add "$fleet/whole" --to "$archive"
if ! [ -d "$kept" ]; then
    cp -R "$fleet/whole" "$kept"
    echo "nightly: $kept is what later runs are held to"
    exit 0
fi
exec nsabench compare "$kept" "$fleet/whole" --fail-on regression
