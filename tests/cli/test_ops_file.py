"""A run of an op from a user's file, and the commands that read the run."""

import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import command

RMSNORM = Path(__file__).parents[1] / "rmsnorm.py"
KERNELS = """
import torch
from nsabench import implementation

def norm(x, weight, eps):
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * weight.float()).to(x.dtype)

@implementation(op="rmsnorm", name="eager", role="baseline", devices=("cpu",))
def eager(x, weight, *, eps):
    return norm(x, weight, eps)

@implementation(op="rmsnorm", name="mine", devices=("cpu",))
def mine(x, weight, *, eps):
    return norm(x, weight, 0.5)
"""
MATRIX = """
op: rmsnorm
axes: {M: 6, D: 8, dtype: float32}
timing:
  warmup_s: 0.005
  stopping: {kind: fixed_count, rounds: 10}
"""


def nsabench(*words):
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=250)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a run and the files from which it was made."""
    folder = tmp_path_factory.mktemp("of_an_op")
    for name, text in (("kernels.py", KERNELS), ("rmsnorm.yaml", MATRIX)):
        (folder / name).write_text(text)
    (folder / "rmsnorm.py").write_text(RMSNORM.read_text())
    files = ("--ops", folder / "rmsnorm.py", "--kernels", folder / "kernels.py")
    done = nsabench(
        "run",
        folder / "rmsnorm.yaml",
        "--device",
        "cpu",
        "--timing",
        "full",
        *files,
        "--out",
        folder / "run",
    )
    assert "Traceback" not in done.stderr, done.stderr
    return folder


def test_its_sizes_are_columns_and_its_controls_are_caught(folder):
    records = pq.read_table(folder / "run" / "records.parquet").to_pylist()
    assert {(r["M"], r["D"], r["length"], r["N"]) for r in records} == {(6, 8, 8, None)}
    status = {r["implementation"]: r["status"] for r in records}
    assert status["eager"] == "ok"
    assert status["mine"] == "wrong"
    [mine] = [r for r in records if r["implementation"] == "mine"]
    assert mine["diagnosis"]
    caught = {r["implementation"]: r["caught"] for r in records if r["role"] == "control"}
    assert len(caught) > 10
    assert set(caught.values()) <= {"caught", "declined"}, caught


def test_what_is_computed_anew_needs_the_file(folder):
    for name, *options in (("report", "--out", folder / "page"), ("audit",), ("threshold",)):
        without = nsabench(name, folder / "run", *options)
        assert without.returncode == 2, without.stdout
        assert "--ops" in without.stderr
        words = (*options, "--ops", folder / "rmsnorm.py")
        done = nsabench(name, folder / "run", *words)
        assert done.returncode in (0, 1), done.stderr
    assert "rmsnorm" in (folder / "page" / "selection_report.md").read_text()
    compared = nsabench("compare", folder / "run", folder / "run")
    assert compared.returncode == 0, compared.stderr


def test_a_run_goes_on_only_with_the_file_that_it_began_with(folder):
    before = (folder / "rmsnorm.py").read_text()
    assert nsabench("run", "--resume", folder / "run").returncode in (0, 1)
    (folder / "rmsnorm.py").write_text(before + "# changed\n")
    try:
        changed = nsabench("run", "--resume", folder / "run")
    finally:
        (folder / "rmsnorm.py").write_text(before)
    assert changed.returncode == 2
    assert "rmsnorm.py is not what it was when the run began" in changed.stderr
