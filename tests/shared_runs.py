"""Finished runs on the CPU, each measured once a session, for tests that only read a run."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import forked

TINY = """
op: selection_rows
axes: {N: 4, H: 2, D: 32, L: [8, 16, 24]}
implementations: {only: [sdpa_gqa, bmm_softmax, rows_group]}
timing:
  warmup_s: 0.005
  stopping: {kind: fixed_count, rounds: 12}
"""
FAILING = """
import torch
from nsabench import implementation

def softmax(q, k, v, sm_scale):
    return torch.softmax(q.float() @ k.float().mT * sm_scale, -1).to(v.dtype) @ v

@implementation(op="selection_rows", name="right", devices=("cuda", "cpu"))
def right(q, k, v, *, sm_scale):
    return softmax(q, k, v, sm_scale)

@implementation(op="selection_rows", name="wrong", devices=("cuda", "cpu"))
def wrong(q, k, v, *, sm_scale):
    return softmax(q, k, v, 2 * sm_scale)

@implementation(op="selection_rows", name="raises", devices=("cuda", "cpu"))
def raises(q, k, v, *, sm_scale):
    raise ValueError("no kernel for this shape")
"""
HOSTILE_TEXT = "</script><script>window.hacked=1</script>\x1b[2J{{7*7}}|`x`[a](javascript:b)"
HOSTILE = f'''
import os
import sys
from nsabench import implementation

TEXT = {HOSTILE_TEXT!r}

@implementation(op="selection_rows", name="dies", devices=("cuda", "cpu"))
def dies(q, k, v, *, sm_scale):
    """Print what must stay text wherever it is shown, and end the process."""
    print(TEXT, flush=True)
    print(TEXT, file=sys.stderr, flush=True)
    os._exit(3)

@implementation(op="selection_rows", name="shouts", devices=("cuda", "cpu"))
def shouts(q, k, v, *, sm_scale):
    raise RuntimeError(TEXT)
'''


def make_once(
    factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]
) -> Iterator[Path]:
    """Yield a folder that `make` fills once, also for the other workers of this session.

    Raises `AssertionError` at the end if a test of this worker changed a file in it.
    """
    base = factory.getbasetemp()
    common = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, finished = common / name, common / f"{name}.finished"
    with (common / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not finished.exists():
            folder.mkdir()
            make(folder)
            finished.touch()
    before = read_files(folder)
    yield folder
    assert read_files(folder) == before, f"a test changed {folder}: use a copy"


def read_files(folder: Path) -> dict[Path, bytes]:
    """Return what the files of a folder hold."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def measure(folder: Path, *words: str, kernels: str = "", code: int | None = None) -> None:
    """Run `nsabench all` in a folder; its output goes to the file `printed`.

    code: what it must exit with. None: 0, or 1 because a busy machine disturbed a control.
    """
    if kernels:
        (folder / "mine.py").write_text(kernels)
        words += ("--kernels", "mine.py")
    command = ["all", "tiny.yaml", "--device", "cpu", *words]
    done = forked.run(command, folder, os.environ, timeout_s=280)
    (folder / "printed").write_text(done.stdout + done.stderr)
    allowed = (0, 1) if code is None else (code,)
    assert done.returncode in allowed, done.stdout + done.stderr


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a signed run of three cases, timed in full. Read it, or alter a copy."""

    def make(folder: Path) -> None:
        (folder / "tiny.yaml").write_text(TINY)
        measure(folder, "--timing", "full", "--out", "run")

    for folder in make_once(tmp_path_factory, "finished-run", make):
        yield folder / "run"


@pytest.fixture(scope="session")
def sharded_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Path]]:
    """Yield the three signed shards of a plan of six cases. Read them, or alter a copy."""

    def make(folder: Path) -> None:
        # All lengths of one shape stay in one shard.
        matrix = TINY.replace("H: 2", "H: [1, 2, 3]").replace("[8, 16, 24]", "[8, 16]")
        (folder / "tiny.yaml").write_text(matrix)
        for index in (1, 2, 3):
            measure(folder, "--shard", f"{index}/3", "--out", f"shard-{index}")

    for folder in make_once(tmp_path_factory, "sharded-runs", make):
        yield [folder / f"shard-{index}" for index in (1, 2, 3)]


@pytest.fixture(scope="session")
def failed_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a signed run of one case and the candidates `right`, `wrong` and `raises`."""

    def make(folder: Path) -> None:
        (folder / "tiny.yaml").write_text(TINY.replace("rows_group", "right, wrong, raises"))
        measure(folder, "--where", "L=16", "--out", "run", kernels=FAILING, code=1)

    for folder in make_once(tmp_path_factory, "failed-run", make):
        yield folder / "run"


@pytest.fixture(scope="session")
def hostile_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a signed run of one case whose candidates `dies` and `shouts` print `HOSTILE_TEXT`."""

    def make(folder: Path) -> None:
        (folder / "tiny.yaml").write_text(TINY.replace("rows_group", "dies, shouts"))
        measure(folder, "--where", "L=16", "--out", "run", kernels=HOSTILE, code=1)

    for folder in make_once(tmp_path_factory, "hostile-run", make):
        yield folder / "run"
