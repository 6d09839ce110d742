"""A file of one's own, end to end on the CPU: what is said of a kernel that is right or crashes."""

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import TINY, command

MINE = """
import torch
import triton
import triton.language as tl
from nsabench import implementation


@implementation(op="selection_rows", name="mine", devices=("cuda", "cpu"))
def mine(q, k, v, sm_scale):
    return torch.softmax(q.float() @ k.float().mT * sm_scale, -1).to(v.dtype) @ v


def helper(q, k):
    def inner(x):
        return torch.matmul(x, k)

    return inner(q[:, :, :5])


@implementation(op="selection_rows", name="crashes", devices=("cuda", "cpu"))
def crashes(q, k, v, sm_scale):
    return helper(q, k)


@triton.jit
def kernel(q, N: tl.constexpr):
    x = tl.load(q + tl.arange(0, N))
    tl.store(q + tl.arange(0, N), x + tl.arange(0, 2 * N))


@implementation(op="selection_rows", name="interpreted")
def interpreted(q, k, v, sm_scale):
    kernel[(1,)](q, 16)
    return q


@implementation(op="selection_rows", name="first_key", devices=("cuda", "cpu"))
def first_key(q, k, v, sm_scale):
    return v[:, :1].expand(-1, q.shape[1], -1).contiguous()
"""
NAMES = ("mine", "crashes", "interpreted", "first_key")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """One run, and what it printed."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "mine.py").write_text(MINE)
    matrix = TINY.replace("rows_group]", ", ".join(["rows_group", *NAMES]) + "]")
    (folder / "tiny.yaml").write_text(matrix.replace("[8, 16, 24]", "[16, 24]"))
    arguments = ("all", "tiny.yaml", "--kernels", "mine.py", "--device", "cpu", "--out", "run")
    arguments += ("--timing", "full")
    finished = subprocess.run(
        command(*arguments), cwd=folder, capture_output=True, text=True, timeout=280
    )
    assert finished.returncode == 1, finished.stdout + finished.stderr
    return folder / "run", finished.stdout


def test_the_log_of_a_case_and_the_page_hold_the_whole_traceback(done: tuple[Path, str]) -> None:
    run, _ = done
    page = (run / "report.html").read_text()
    logs = [path.read_text() for path in sorted((run / "logs").iterdir())]
    assert len(logs) == 2
    for log in logs:
        crashes = log.partition("=== crashes\n")[2].partition("=== ")[0]
        assert crashes.startswith("Traceback (most recent call last):\n")
        for frame in ("in crashes", "in helper", "in inner"):
            assert frame in crashes and frame in page
        assert "nsabench/running" not in crashes
        interpreted = log.partition("=== interpreted\n")[2].partition("=== ")[0]
        assert "in kernel" in interpreted and "in interpreted" in interpreted


def test_every_own_candidate_is_decided_before_those_that_ship(done: tuple[Path, str]) -> None:
    run, _ = done
    decisions = yaml.safe_load((run / "thresholds.yaml").read_text())["decisions"]
    for regime in ("device", "queue"):
        candidates = [d["candidate"] for d in decisions if d["regime"] == regime]
        assert set(candidates[:4]) == set(NAMES)
        assert candidates[4:] == ["rows_group"]
    assert {d["answer"] for d in decisions} == {"not decided"}


def test_a_reason_names_the_line_of_the_kernel(done: tuple[Path, str]) -> None:
    _, printed = done
    line = next(n for n, text in enumerate(MINE.splitlines(), 1) if "2 * N" in text)
    assert f"(mine.py:{line})" in printed
