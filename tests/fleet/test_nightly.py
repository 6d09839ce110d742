"""The script of the nightly example: it waits for the merge, keeps the run, and gates on it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "docs" / "how-to" / "nightly.sh"
# Merged at the third look, unless NEVER; a regression where WORSE. REFUSED: the scheduler takes no
# job. QUEUED: what it says of the shard.
NSABENCH = """#!/bin/sh
echo "$@" >> calls
case "$1 $2" in
"fleet slurm") while [ $# -gt 0 ]; do [ "$1" = --out ] && mkdir -p "$2/whole"; shift; done
    exit "${REFUSED:-0}" ;;
"fleet status")
    echo look >> looks
    if [ -z "${NEVER:-}" ] && [ "$(wc -l < looks)" -ge 3 ]; then merged=true; else merged=false; fi
    printf '{\\n "shards": [\\n  {\\n   "queued": "%s"\\n  }\\n ],\\n "merged": %s\\n}\\n' \\
        "${QUEUED:-}" "$merged" ;;
"compare kept") exit "${WORSE:-0}" ;;
esac
"""


def night(folder: Path, matrix: str = "rows.yaml", **variables: str) -> tuple[int, list[str]]:
    """Returns the exit code, and what nsabench was asked for."""
    (folder / "nsabench").write_text(NSABENCH)
    (folder / "nsabench").chmod(0o755)
    (folder / "calls").unlink(missing_ok=True)
    done = subprocess.run(
        ["sh", SCRIPT, matrix, "8", "kept", "s3://bench/runs"],
        cwd=folder,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "EVERY_S": "0", **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, (folder / "calls").read_text().splitlines()


def test_the_first_night_makes_what_others_are_held_to(tmp_path: Path) -> None:
    code, calls = night(tmp_path)
    assert code == 0 and (tmp_path / "kept").is_dir()
    assert calls[0].startswith("fleet slurm rows.yaml --shards 8 --out fleets/")
    assert [" ".join(call.split()[:2]) for call in calls[1:]] == [
        *["fleet status"] * 3,
        "archive add",
    ]


@pytest.mark.parametrize("worse", ["0", "1"])
def test_a_later_night_ends_as_the_comparison_does(tmp_path: Path, worse: str) -> None:
    (tmp_path / "kept").mkdir()
    code, calls = night(tmp_path, WORSE=worse)
    assert code == int(worse)
    assert calls[-1].endswith("/whole --fail-on regression") and "compare kept" in calls[-1]
    assert not any(call.startswith("fleet slurm") for call in night(tmp_path)[1])


def test_two_matrices_of_one_day_are_two_fleets(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    fleets = [night(tmp_path, matrix)[1][0].split()[-2] for matrix in ("a/rows.yaml", "block")]
    assert fleets[0].endswith("-a-rows.yaml") and fleets[1].endswith("-block")
    assert all((tmp_path / fleet).is_dir() for fleet in fleets)


def test_a_submission_that_failed_is_made_up_for(tmp_path: Path) -> None:
    """What is queued is not submitted twice."""
    (tmp_path / "kept").mkdir()
    assert night(tmp_path, REFUSED="3")[0] == 3
    code, calls = night(tmp_path, QUEUED="PENDING (Resources)")
    assert code == 0 and not any(call.startswith("fleet submit") for call in calls)
    (tmp_path / "looks").unlink()
    code, calls = night(tmp_path)
    assert code == 0 and calls[1].startswith("fleet submit fleets/")


def test_a_merge_that_does_not_come_is_an_error(tmp_path: Path) -> None:
    code, calls = night(tmp_path, NEVER="1", LIMIT_S="0")
    assert code == 3 and not any(call.startswith(("archive", "compare")) for call in calls)
