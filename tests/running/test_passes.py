"""Each pass of a run measures in processes of its own."""

import re

from tests.commands import invoke

PRINTS = """\
import os
from nsabench import implementation

@implementation(op="selection_rows", name="other", role="baseline", devices=("cpu",))
def other(q, k, v, sm_scale):
    print(f"process={os.getpid()}.")
    return (q @ k.transpose(1, 2) * sm_scale).softmax(-1) @ v
"""
MATRIX = """\
op: selection_rows
axes: {dtype: float32, N: [4, 8], H: 2, L: 8, D: 16}
"""


def test_the_case_that_all_shards_measure_runs_in_another_process(tmp_path):
    (tmp_path / "mine.py").write_text(PRINTS)
    (tmp_path / "two.yaml").write_text(MATRIX)
    words = ["run", tmp_path / "two.yaml", "--kernels", tmp_path / "mine.py"]
    invoke(*words, "--device", "cpu", "--shard", "1/2", "--out", tmp_path / "run")
    logs = (tmp_path / "run" / "logs").glob("*.log")
    main, canary = (set(re.findall(r"process=(\d+)", log.read_text())) for log in logs)
    assert len(main) == len(canary) == 1 and main != canary
