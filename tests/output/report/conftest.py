"""Runs for reports: plans and logs as on a GPU, with made-up timings."""

from functools import partial

import numpy as np
import pytest

from nsabench import ops
from nsabench.model.measurement import Ceilings, Observation
from nsabench.model.plan import MatrixInfo, Plan
from nsabench.model.vocabulary import Role, Status
from tests import runs
from tests.output.report.browser import chromium
from tests.runs import Made, info

# Text that a hostile kernel could print or raise. It must stay text wherever it is shown.
HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>{{7*7}}|`x`"
LENGTHS = (64, 128, 256, 512)


@pytest.fixture(scope="session")
def browser():
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """Make a valid run with two candidates. One is slow and often fails, with hostile messages."""
    return make_run(tmp_path_factory.mktemp("run") / "a-run")


@pytest.fixture(scope="session")
def invalid_run(tmp_path_factory):
    """Return a run whose control was not caught."""
    return make_run(tmp_path_factory.mktemp("invalid") / "a-run", caught=False)


def make_run(folder, *, caught=True, lengths=LENGTHS):
    def changed(plan):
        infos = list(plan.implementations)
        infos.insert(3, info("sdpa_expand", Role.BASELINE))
        names = tuple(i.name for i in infos)
        cases = [c.model_copy(update={"implementations": names}) for c in plan.cases]
        matrices = [MatrixInfo(name="made", file="made.yaml", sha256="0" * 64)]
        update = {"implementations": infos, "cases": cases, "matrices": matrices}
        return plan.model_copy(update=update)

    made = Made(
        run_id="20260101T000000Z-abcdef",
        gpu="NVIDIA Imaginary",
        torch="2.13.0",
        triton="3.7.1",
        lengths=lengths,
        shapes=((256, 4, 64),),
        implementations=("quick_one", "nasty_one"),
        ceilings=Ceilings(
            copy_gb_s=4000.0,
            tflop_s={"float16": 700.0, "bfloat16": 700.0},
            timer_floor_ms=0.001,
            known_duration_error=0.001,
        ),
    )
    observe = partial(observations_of, caught=caught)
    runs.make_run(folder, made, change=changed, observe=observe)
    (folder / "environment.json").unlink()
    for planned in Plan.read(folder / "plan.json").cases:
        (folder / "logs" / f"{planned.id}.log").write_text(f"first\n{HOSTILE}\n")
    return folder


def observations_of(planned, *, caught):
    case = planned.case
    length = case.shape["L"]
    floor = ops.work(case).bytes_min / 4000e6
    nasty = (
        timed("nasty_one", 4 * floor + 0.02)
        if length == LENGTHS[0]
        else Observation(
            implementation="nasty_one", status=Status.CRASHED, reason=f"died {HOSTILE}"
        )
    )
    control = (
        Observation(
            implementation="zero_output",
            status=Status.WRONG,
            reason="mean absolute error 0.1",
            diagnosis=HOSTILE,
            mae=0.1,
        )
        if caught
        else timed("zero_output", 2 * floor)
    )
    return [
        timed("quick_one", 1.2 * floor + 0.002),
        nasty,
        timed("sdpa_gqa", 1.3 * floor + 0.004),
        timed("sdpa_expand", 3 * floor + 0.01),
        control,
    ]


def timed(name, ms):
    return runs.timed(name, ms, Made(samples=40, noise=0.001), np.random.default_rng(0))
