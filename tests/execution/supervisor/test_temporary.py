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

from nsabench.execution.supervisor import scratch, temporary
from nsabench.execution.supervisor.scratch import Scratch
from nsabench.execution.supervisor.temporary import PREFIX, TemporaryFolder, sweep

OWNER = """
import os, sys
from pathlib import Path
from nsabench.execution.supervisor.scratch import Scratch

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
def tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of temporary files, in which no process has been yet."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    scratch._sweep.cache_clear()
    yield tmp_path
    scratch._sweep.cache_clear()


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


def left(tmp: Path) -> list[Path]:
    """Folders and locks, where a run has them."""
    return [*tmp.glob(f"{PREFIX}*"), *tmp.glob("nsabench-referees-*/*")]


def test_the_next_run_removes_what_a_killed_one_left(
    tmp: Path, owner: subprocess.Popen[str]
) -> None:
    """With what it had put aside, and what its kernels had locked."""
    theirs = left(tmp)
    assert len(theirs) == 4, "a scratch, one put aside, the referee's, and the lock"
    Scratch().remove()
    assert set(theirs) <= set(left(tmp)), "its process lives"
    owner.send_signal(signal.SIGKILL)
    owner.wait(60)
    scratch._sweep.cache_clear()
    Scratch().remove()
    assert not set(theirs) & set(left(tmp))


def test_nothing_else_is_removed(tmp: Path) -> None:
    """What has no lock beside it, and what only looks like it."""
    locks = tmp / "locks"
    locks.mkdir()
    own = TemporaryFolder(locks)
    others = [tmp / f"{PREFIX}another", tmp / "nsabench-abc"]
    for path in others:
        path.mkdir()
    (locks / "elsewhere-12345678.lock").touch()  # of another machine
    (tmp / f"{PREFIX}elsewhere-12345678-x").mkdir()
    sweep(locks, tmp)
    assert Path(own.name).is_dir() and all(path.is_dir() for path in others)
    assert (tmp / f"{PREFIX}elsewhere-12345678-x").is_dir()
    own.remove()
    assert not Path(own.name).exists()


def test_a_link_in_the_place_of_a_folder_leads_nowhere(tmp: Path) -> None:
    locks, precious = tmp / "locks", tmp / "precious"
    locks.mkdir()
    precious.mkdir()
    (precious / "file").touch(0o400)
    (locks / f"{temporary._boot()}12345678.lock").touch()
    link = tmp / f"{PREFIX}{temporary._boot()}12345678-x"
    link.symlink_to(precious)
    sweep(locks, tmp)
    assert not link.is_symlink() and (precious / "file").stat().st_mode & 0o777 == 0o400


def test_where_the_machine_is_not_known_nothing_is_swept(
    tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp / "12345678.lock").touch()
    (tmp / f"{PREFIX}12345678-x").mkdir()
    monkeypatch.setattr(temporary, "_boot", lambda: "")
    sweep(tmp, tmp)
    assert (tmp / f"{PREFIX}12345678-x").is_dir()


@pytest.mark.parametrize("depth", [3, 3000])
def test_however_deep_it_is_it_is_removed(tmp: Path, depth: int) -> None:
    own = TemporaryFolder(tmp)
    here = os.open(own.name, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    own.remove()
    assert not Path(own.name).exists()
