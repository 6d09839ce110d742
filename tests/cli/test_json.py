"""A run as a program reads it: its result as JSON."""

import json
from pathlib import Path

from tests.cli.conftest import TINY, Nsabench
from tests.cli.conftest import nsabench as nsabench

MINE = """
import torch
from nsabench import implementation


@implementation(op="selection_rows", name="mine", devices=("cuda", "cpu"))
def mine(q, k, v, sm_scale):
    return torch.softmax(q.float() @ k.float().mT * sm_scale, -1).to(v.dtype) @ v
"""


def test_the_result_of_a_run_is_json(tmp_path: Path, nsabench: Nsabench) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    matrix = tmp_path / "tiny.yaml"
    matrix.write_text(TINY.replace("rows_group]", "mine]"))
    run = tmp_path / "run"
    done = nsabench(
        *("all", matrix, "--kernels", tmp_path / "mine.py", "--device", "cpu", "--out", run),
        *("--where", "L=16", "--json"),
    )
    result = json.loads(done.stdout)
    assert "[1/1] selection_rows" in done.stderr
    # 1: a time came out odd on a busy machine.
    assert result["exit_code"] == done.returncode and done.returncode in (0, 1), done.stderr
    assert result["run_id"] == json.loads((run / "plan.json").read_text())["run_id"]
    [mine] = result["candidates"]
    assert (mine["implementation"], mine["status"], mine["length"]) == ("mine", "ok", 16)
    assert result["thresholds"]["decisions"][0]["candidate"] == "mine"
    assert result["controls"]["caught"] > 0 and "ephemeral" in result["signature"]
