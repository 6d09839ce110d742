"""A script for one implementation on one case, which runs alone and needs only torch."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from nsabench import ops
from nsabench.model.job import input_seeds
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import Purpose
from tests.cli.conftest import TINY, Nsabench, complete
from tests.cli.conftest import nsabench as nsabench

MINE = """
import torch
from nsabench import implementation


@implementation(op="selection_rows", name="mine", devices=("cuda", "cpu"))
def mine(q, k, v, *, sm_scale):
    print("called")
    return torch.softmax(q.float() @ k.float().mT * sm_scale, -1).to(v.dtype) @ v
"""
# As on a machine on which nsabench is not installed.
WITHOUT = "import runpy, sys; sys.modules['nsabench'] = None; runpy.run_path(sys.argv[1])"


def test_a_script_calls_it_on_the_inputs_of_the_run(tmp_path: Path, nsabench: Nsabench) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    matrix = yaml.safe_load(TINY) | {"implementations": {"only": ["mine", "sdpa_gqa"]}}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(matrix))
    done = nsabench(
        *("run", "tiny.yaml", "--kernels", "mine.py", "--device", "cpu", "--out", "run"),
        *("--where", "L=16"),
    )
    complete(done)
    [planned] = Plan.read(tmp_path / "run" / "plan.json").cases
    done = nsabench("profile", "run", planned.id[:8], "mine", "alone.py")
    assert done.stdout.splitlines() == ["alone.py", "alone.pt"], done.stderr
    script = tmp_path / "alone.py"
    assert len(script.read_text().splitlines()) <= 60
    case = planned.case
    plan = Plan.read(tmp_path / "run" / "plan.json")
    seed = input_seeds(plan.entropy, Purpose.MAIN, case)[0]  # as the run has drawn
    inputs = ops.get(case.op).draw(ops.sizes(case), case.dtype, "dense", seed, "cpu")
    saved = torch.load(tmp_path / "alone.pt", weights_only=True)
    assert all(torch.equal(saved["tensors"][name], t) for name, t in inputs.tensors.items())
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(script)], capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    *called, said = ran.stdout.splitlines()
    assert called == ["called"] * 13
    norm = ops.get(case.op).oracle(inputs).norm().item()
    assert said.startswith("(4, 2, 32) torch.float16 ")
    assert float(said.split()[-1]) == pytest.approx(norm, rel=1e-3)
    # A baseline comes from the package, so its script needs nsabench.
    assert nsabench("profile", "run", planned.id, "sdpa_gqa", "b.py").returncode == 0
    ran = subprocess.run([sys.executable, str(tmp_path / "b.py")], capture_output=True, text=True)
    assert ran.stdout.startswith("(4, 2, 32) torch.float16 "), ran.stderr
    # Bad input.
    missing = nsabench("profile", "run", "zz", "mine", "x.py")
    assert missing.returncode == 2 and "no cases" in missing.stderr
    missing = nsabench("profile", "run", planned.id, "mnie", "x.py")
    assert missing.returncode == 2 and "mine" in missing.stderr
    (tmp_path / "mine.py").write_text(MINE + "# other\n")
    other = nsabench("profile", "run", planned.id, "mine", "x.py")
    assert other.returncode == 2 and "mine.py" in other.stderr
