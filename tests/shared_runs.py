"""Finished runs on the CPU for tests that only read a run. Each is measured once in a pytest
session."""

import fcntl
import os

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
import triton
import triton.language as tl
from nsabench import implementation


@implementation(op="selection_rows", name="right", devices=("cuda", "cpu"))
def right(q, k, v, sm_scale):
    return torch.softmax(q.float() @ k.float().mT * sm_scale, -1).to(v.dtype) @ v


def helper(q, k):
    def inner(x):
        return torch.matmul(x, k)

    return inner(q[:, :, :5])


@implementation(op="selection_rows", name="raises", devices=("cuda", "cpu"))
def raises(q, k, v, sm_scale):
    return helper(q, k)


@triton.jit
def kernel(q, N: tl.constexpr):
    x = tl.load(q + tl.arange(0, N))
    tl.store(q + tl.arange(0, N), x + tl.arange(0, 2 * N))


@implementation(op="selection_rows", name="interpreted")
def interpreted(q, k, v, sm_scale):
    kernel[(1,)](q, 16)
    return q


@implementation(op="selection_rows", name="wrong", devices=("cuda", "cpu"))
def wrong(q, k, v, sm_scale):
    return v[:, :1].expand(-1, q.shape[1], -1).contiguous()


@implementation(op="selection_rows", name="scaled", devices=("cuda", "cpu"))
def scaled(q, k, v, sm_scale):
    return right(q, k, v, q.shape[-1] ** -0.5)  # only a probe draws another scale
"""


def make_once(factory, name, make):
    """Yield a folder that `make` fills once for all workers of pytest-xdist.

    Raises `AssertionError` at the end if a file in it changed meanwhile.
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


def read_files(folder):
    """Return the content of each file in a folder, by path."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def measure(folder, *words, kernels="", code=None):
    """Run `nsabench all` in a folder; its output goes to the file `printed`.

    code: the required exit code. None: 0 or 1, since a busy machine can disturb a control.
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
def finished_run(tmp_path_factory):
    """Yield a signed run of three cases, timed in full. Read it, or alter a copy."""

    def make(folder):
        (folder / "tiny.yaml").write_text(TINY)
        measure(folder, "--timing", "full", "--out", "run")

    for folder in make_once(tmp_path_factory, "finished-run", make):
        yield folder / "run"


@pytest.fixture(scope="session")
def failed_run(tmp_path_factory):
    """Yield a signed run of one case, timed in full, with the candidates in `FAILING`."""

    def make(folder):
        names = "rows_group, right, wrong, scaled, raises, interpreted"
        (folder / "tiny.yaml").write_text(TINY.replace("rows_group", names))
        words = ("--where", "L=16", "--timing", "full", "--out", "run")
        measure(folder, *words, kernels=FAILING, code=1)

    for folder in make_once(tmp_path_factory, "failed-run", make):
        yield folder / "run"
