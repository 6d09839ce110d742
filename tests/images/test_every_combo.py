"""every-combo.sh builds the image of every combo and tries it once."""

import os
import subprocess

from nsabench.images import combos

CHECKOUT = combos.checkout()


# A docker that answers from files, and a python whose nsabench lists two combos. It fails to build
# `bad`, and takes too long for `slow`.
DOCKER = """#!/bin/sh
case "$1 $2" in
"info --format") pwd ;;
"image inspect") echo 1500000000 ;;
"run --rm") echo 7 launches, 0 failed ;;
"images --filter") cat dangling ;;
"image rm") shift 2; echo "$@" >> removed ;;
esac
"""
PYTHON = """#!/bin/sh
if [ "$1" = -c ]; then exec python3 "$@"; fi
shift 2
echo "$@" >> calls
case "$*" in
"images list --json") echo '{"good": {}, "other": {}}' ;;
"images build good"*)
    printf ' ---> 0123456789ab\n ---> ba9876543210\n'
    printf '0123456789ab\nba9876543210\nffffffffffff\n' > dangling ;;
"images build bad"*) echo "nsabench: no such wheel"; exit 1 ;;
"images build slow"*) exec sleep 60 ;;
esac
"""


def every_combo(folder, *combos, room="0"):
    for name, text in (("docker", DOCKER), ("python", PYTHON)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "calls").write_text("")
    (folder / "dangling").write_text("ba9876543210\n")
    return subprocess.run(
        ["sh", CHECKOUT.docker / "every-combo.sh", "base", *combos],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{folder}:{os.environ['PATH']}",
            "PYTHON": "./python",
            "LINES": "24",  # the height of a terminal, as many shells export it
            "ROWS_IN": "lines",
            "LIMIT_S": "1",
            "ROOM_GB": room,
        },
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_every_combo_is_tried_once_and_a_slow_one_is_given_up(tmp_path):
    first = every_combo(tmp_path, "bad", "slow", "good")
    assert first.returncode == 0, first.stderr
    lines = first.stdout.splitlines()[2:]
    assert lines[0] == "| `bad` | failed: nsabench: no such wheel | | | |"
    assert lines[1] == "| `slow` | failed: given up after 1 s | | | |"
    assert lines[2].startswith("| `good` |") and "| 1.5 GB |" in lines[2]
    assert lines[2].endswith("| 7 launches, 0 failed |")
    assert every_combo(tmp_path, "bad", "slow", "good").stdout == first.stdout
    assert (tmp_path / "calls").read_text() == "", "a combo that was tried is not tried again"
    every_combo(tmp_path)
    calls = (tmp_path / "calls").read_text()
    assert "images build other" in calls and "images build good" not in calls


def test_what_a_build_left_goes_and_what_others_build_stays(tmp_path):
    """One dangling image is older than the build, and one belongs to another build."""
    assert every_combo(tmp_path, "good").returncode == 0
    assert (tmp_path / "lines" / "good.md").is_file()
    assert (tmp_path / "removed").read_text().split() == ["nsabench:good", "0123456789ab"]


def test_no_combo_is_built_where_there_is_no_room(tmp_path):
    refused = every_combo(tmp_path, "good", room="10000000")
    assert refused.returncode == 3 and "it goes on with good" in refused.stderr
    assert (tmp_path / "calls").read_text() == ""
