"""What a process that was killed has left in the folder of temporary files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsabench.running.supervisor.scratch import Scratch
from nsabench.running.supervisor.temporary import PREFIX, TemporaryFolder, sweep

OWNER = """
import sys
from pathlib import Path
from nsabench.running.supervisor.scratch import Scratch

own = Scratch()
Path(own.path, "cache", "triton").mkdir(parents=True)
aside = own.put_aside()
Path(own.path, "locked").mkdir()
Path(own.path, "locked", "file").touch()
Path(own.path, "locked").chmod(0o300)
print(own.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files, in which no process has been yet."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def owner(tmp: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has a scratch there, and one put aside."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp)},
    ) as process:
        assert process.stdout is not None
        assert Path(process.stdout.readline().strip()).parent == tmp
        yield process
        process.kill()


def test_the_next_run_removes_what_a_killed_one_left(
    tmp: Path, owner: subprocess.Popen[str]
) -> None:
    """With what it had put aside, and what its kernels had locked."""
    theirs = set(tmp.glob(f"{PREFIX}*"))
    assert len(theirs) == 2, "a scratch, and one put aside"
    sweep()
    assert theirs <= set(tmp.glob(f"{PREFIX}*")), "its process lives"
    owner.send_signal(signal.SIGKILL)
    owner.wait(60)
    sweep()
    assert not theirs & set(tmp.glob(f"{PREFIX}*"))


def test_what_only_looks_like_a_leftover_stays(tmp: Path) -> None:
    """A folder of this process, of another machine, and one whose name says nothing."""
    own = Scratch()
    others = [tmp / f"{PREFIX}another", tmp / f"{PREFIX}elsewhere.4026531836-1-1-x"]
    for path in others:
        path.mkdir()
    sweep()
    assert Path(own.path).is_dir() and all(path.is_dir() for path in others)
    own.remove()
    assert not Path(own.path).exists()


def test_a_link_in_the_place_of_a_folder_leads_nowhere(
    tmp: Path, owner: subprocess.Popen[str]
) -> None:
    precious = tmp / "precious"
    precious.mkdir()
    (precious / "file").touch(0o400)
    theirs = next(tmp.glob(f"{PREFIX}*"))
    link = theirs.with_name(f"{theirs.name}-link")
    link.symlink_to(precious)
    owner.send_signal(signal.SIGKILL)
    owner.wait(60)
    sweep()
    assert not link.is_symlink() and (precious / "file").stat().st_mode & 0o777 == 0o400


@pytest.mark.parametrize("depth", [3, 3000])
def test_however_deep_it_is_it_is_removed(tmp: Path, depth: int) -> None:
    own = TemporaryFolder()
    here = os.open(own.name, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    own.remove()
    assert not Path(own.name).exists()
