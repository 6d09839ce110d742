"""A run as a program reads it: JSON a line while it runs, its result last."""

from __future__ import annotations

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


def test_a_run_is_told_as_lines_of_json(tmp_path: Path, nsabench: Nsabench) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    matrix = tmp_path / "tiny.yaml"
    matrix.write_text(TINY.replace("rows_group]", "mine]"))
    run = tmp_path / "run"
    done = nsabench(
        *("all", matrix, "--kernels", tmp_path / "mine.py", "--device", "cpu", "--out", run),
        *("--where", "L=16", "--json"),
    )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    names = [line["event"] for line in told]
    assert names.count("run_started") == 1
    assert names.count("case_started") == names.count("case_finished") == 1
    assert names.index("run_started") < names.index("case_started") < names.index("case_finished")
    result = told[-1]
    assert result["event"] == "finished"
    # 1: a time came out odd on a busy machine.
    assert result["exit_code"] == done.returncode and done.returncode in (0, 1), done.stderr
    assert result["run_id"] == json.loads((run / "plan.json").read_text())["run_id"]
    [mine] = result["candidates"]
    assert (mine["implementation"], mine["status"], mine["length"]) == ("mine", "ok", 16)
    assert result["thresholds"]["decisions"][0]["candidate"] == "mine"
    assert result["controls"]["caught"] > 0 and "ephemeral" in result["signature"]
