"""The attacks of `tests/attacks` that need a CUDA device: each is named in its record, and gains
nothing."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from nsabench.assessment.checks.outside import longest_ms
from nsabench.execution.supervisor import examiner
from nsabench.execution.supervisor.executor import WorkerExecutor
from nsabench.model.vocabulary import Role, Status, Verdict
from tests.attacks.test_attacks import (
    ATTACKS,
    BASELINE,
    OP,
    Attack,
    case_of,
    measured,
    planned,
)

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
TIMEOUT_S = 60.0  # a context is made, and kernels are compiled
OF_CUDA = [one for one in ATTACKS if one.device == "cuda"]


def test_calls_on_a_gpu_are_seen_from_outside_where_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Off by default: this shows whether it may be on."""
    monkeypatch.setenv(examiner.ON_CUDA, "1")
    # A baseline is looked at beside one that says it is faster: this one needs several launches,
    # so that it is surely slower.
    names = (BASELINE, "sdpa_gqa_math")
    with closing(WorkerExecutor("cuda")) as executor:
        known = {(i.op, i.name): i for i in executor.discover()}
        # Baselines of a candidate's own source are none that it is held to.
        mine = known[OP, names[0]].model_copy(update={"role": Role.CANDIDATE, "source": "mine"})
        executor.infos = {**known, (OP, names[0]): mine}
        outcome, _ = executor.measure(case_of(512, TIMEOUT_S), list(names), 1).outcomes
    assert outcome.status is Status.OK, outcome.reason
    seen = outcome.outside
    assert seen is not None and not seen.reason and seen.baseline == names[1], seen
    assert seen.time_ms <= longest_ms(min(outcome.samples.time_ms), seen), seen


@pytest.mark.parametrize("attack", OF_CUDA, ids=lambda one: f"{one.family}-{one.name}")
def test_it_gains_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attack: Attack) -> None:
    folder = tmp_path / "run"
    monkeypatch.setenv("NSABENCH_TEST_RUN", str(folder))
    plan = planned(attack.family, (attack.name,), device="cuda", timeout_s=TIMEOUT_S)
    run = measured(plan, folder)
    record, baseline = run.of(attack.name)
    told = f"{record.status}: {record.reason} | {record.notes}"
    assert record.status == attack.status, told
    assert attack.says in f"{record.reason} {record.notes}", told
    assert record.verdict is not Verdict.FASTER, told
    if record.status is not Status.OK:
        assert record.median_ms is None and record.speedup is None
        assert attack.name in run.page
    assert baseline.status is Status.OK, f"{baseline.status}: {baseline.reason}"
    assert run.left == []
