"""A script for one implementation on one case, which runs alone and needs only torch."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nsabench import ops
from nsabench.errors import UsageError
from nsabench.model.job import input_seeds
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import Purpose
from tests.commands import invoke
from tests.shared_runs import FAILING

# As on a machine on which nsabench is not installed.
WITHOUT = "import runpy, sys; sys.modules['nsabench'] = None; runpy.run_path(sys.argv[1])"


def test_a_script_calls_it_on_the_inputs_of_the_run(tmp_path: Path, failed_run: Path) -> None:
    plan = Plan.read(failed_run / "plan.json")
    [planned] = plan.cases
    case, script = planned.case, tmp_path / "alone.py"
    done = invoke("profile", failed_run, planned.id[:8], "right", script)
    assert done.stdout.splitlines() == [str(script), str(tmp_path / "alone.pt")], done
    assert len(script.read_text().splitlines()) <= 60
    seed = input_seeds(plan.entropy, Purpose.MAIN, case)[0]  # as the run has drawn
    inputs = ops.get(case.op).draw(ops.sizes(case), case.dtype, "dense", seed, "cpu")
    saved = torch.load(tmp_path / "alone.pt", weights_only=True)
    assert all(torch.equal(saved["tensors"][name], t) for name, t in inputs.tensors.items())
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(script)], capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    norm = ops.get(case.op).oracle(inputs).norm().item()
    assert ran.stdout.startswith("(4, 2, 32) torch.float16 ")
    assert float(ran.stdout.split()[-1]) == pytest.approx(norm, rel=1e-3)
    # A baseline comes from the package, so its script needs nsabench.
    assert invoke("profile", failed_run, planned.id, "sdpa_gqa", tmp_path / "b.py").code == 0
    ran = subprocess.run([sys.executable, str(tmp_path / "b.py")], capture_output=True, text=True)
    assert ran.stdout.startswith("(4, 2, 32) torch.float16 "), ran.stderr


@pytest.mark.parametrize(("case_id", "name"), [("zz", "right"), ("", "rihgt")])
def test_what_is_not_in_the_run_is_refused(
    tmp_path: Path, failed_run: Path, case_id: str, name: str
) -> None:
    [planned] = Plan.read(failed_run / "plan.json").cases
    done = invoke("profile", failed_run, case_id or planned.id, name, tmp_path / "x.py")
    assert isinstance(done.error, UsageError)
    assert not (tmp_path / "x.py").exists()


def test_a_kernel_that_changed_since_is_refused(tmp_path: Path, failed_run: Path) -> None:
    run = Path(shutil.copytree(failed_run, tmp_path / "run"))
    (run / "manifest.dsse.json").unlink()
    plan = Plan.read(run / "plan.json")
    (tmp_path / "mine.py").write_text(FAILING + "# other\n")
    plan.model_copy(update={"kernels": str(tmp_path / "mine.py")}).write(run / "plan.json")
    done = invoke("profile", run, plan.cases[0].id, "right", tmp_path / "x.py")
    assert isinstance(done.error, UsageError)
