"""`nsabench profile` writes a script that calls one implementation on one case."""

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
from nsabench.model.vocabulary import Purpose, Status
from nsabench.output.report import Facts
from tests.commands import invoke
from tests.shared_runs import FAILING

# Run a script as if nsabench were not installed.
WITHOUT = "import runpy, sys; sys.modules['nsabench'] = None; runpy.run_path(sys.argv[1])"


def test_a_script_calls_it_on_the_inputs_of_the_run(tmp_path, failed_run):
    plan = Plan.read(failed_run / "plan.json")
    [planned] = plan.cases
    case, script = planned.case, tmp_path / "alone.py"
    done = invoke("profile", failed_run, planned.id[:8], "right", script)
    assert done.stdout.splitlines() == [str(script), str(tmp_path / "alone.pt")], done
    assert done.stderr == f"next: python {script}\n", "on the CPU, no profiler of GPUs is suggested"
    assert len(script.read_text().splitlines()) <= 90
    seed = input_seeds(plan.entropy, Purpose.MAIN, case)[0]  # as the run has drawn
    inputs = ops.get(case.op).draw(ops.sizes(case), case.dtype, "dense", seed, "cpu")
    saved = torch.load(tmp_path / "alone.pt", weights_only=True)
    first = saved["sets"][0]["tensors"]
    assert all(torch.equal(first[name], t) for name, t in inputs.tensors.items())
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(script)], capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "ok\n"


@pytest.mark.parametrize(("name", "status"), [("rows_group", Status.OK), ("scaled", Status.WRONG)])
def test_a_script_has_the_status_of_the_record(tmp_path, failed_run, name, status):
    """`rows_group` is from a package, so its script needs nsabench. Only a probe sees the mistake
    of `scaled`."""
    [record] = [r for r in Facts.read(failed_run).candidates if r.implementation == name]
    assert record.status is status
    script = tmp_path / "alone.py"
    assert invoke("profile", failed_run, record.case_id, name, script).returncode == 0
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert ran.stdout.split()[0].rstrip(":") == status, ran.stdout + ran.stderr


@pytest.mark.parametrize(("case_id", "name"), [("zz", "right"), ("", "rihgt")])
def test_what_is_not_in_the_run_is_refused(tmp_path, failed_run, case_id, name):
    [planned] = Plan.read(failed_run / "plan.json").cases
    done = invoke("profile", failed_run, case_id or planned.id, name, tmp_path / "x.py")
    assert isinstance(done.error, UsageError)
    assert not (tmp_path / "x.py").exists()


def test_a_kernel_that_changed_since_is_refused(tmp_path, failed_run):
    run = Path(shutil.copytree(failed_run, tmp_path / "run"))
    (run / "manifest.dsse.json").unlink()
    plan = Plan.read(run / "plan.json")
    (tmp_path / "mine.py").write_text(FAILING + "# other\n")
    plan.model_copy(update={"kernels": str(tmp_path / "mine.py")}).write(run / "plan.json")
    done = invoke("profile", run, plan.cases[0].id, "right", tmp_path / "x.py")
    assert isinstance(done.error, UsageError)
