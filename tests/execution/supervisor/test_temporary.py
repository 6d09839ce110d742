"""Temporary folders of whoever is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nsabench.execution.supervisor import temporary
from nsabench.execution.supervisor.temporary import Temporary, sweep

OWNER = """
import sys, time
from pathlib import Path
from nsabench.execution.supervisor.temporary import Temporary
own = Temporary(Path(sys.argv[1]))
print(own.name, flush=True)
time.sleep(60)
"""


def aged(path: Path) -> Path:
    """As if it had been made long ago."""
    then = time.time() - 2 * temporary.YOUNG_S
    os.utime(path, (then, then))
    return path


def test_what_a_killed_process_leaves_is_swept_and_nothing_else(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    theirs = Path(owner.stdout.readline().strip())
    (theirs / "cache").mkdir()
    aged(theirs)
    sweep(tmp_path)
    assert theirs.exists(), "its process lives"
    owner.send_signal(signal.SIGKILL)
    owner.wait(60)
    owner.stdout.close()
    os.utime(theirs)
    sweep(tmp_path)
    assert theirs.exists(), "it was made just now"
    other = tmp_path / "nsabench-another"
    other.mkdir()
    aged(other)
    link = tmp_path / f"{temporary.PREFIX}link"
    link.symlink_to(other)
    aged(theirs)
    sweep(tmp_path)
    assert not theirs.exists() and other.exists() and link.is_symlink()


def test_what_takes_its_place_is_held_as_well(tmp_path: Path) -> None:
    """As a scratch that was put aside has it."""
    own = Temporary(tmp_path)
    Path(own.name).rename(tmp_path / "aside")
    Path(own.name).mkdir()
    own.hold()
    aged(Path(own.name))
    sweep(tmp_path)
    assert Path(own.name).exists()
    own.remove()
    assert not Path(own.name).exists()


@pytest.mark.parametrize("depth", [3, 3000])
def test_however_deep_it_is_it_is_removed(tmp_path: Path, depth: int) -> None:
    own = Temporary(tmp_path)
    here = os.open(own.name, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    own.remove()
    assert not Path(own.name).exists()
