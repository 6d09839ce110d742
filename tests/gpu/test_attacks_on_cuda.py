"""The attacks of `tests/attacks` that need a CUDA device: each is named in its record, and gains
nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsabench.model.vocabulary import Status, Verdict
from tests.attacks.test_attacks import (
    ATTACKS,
    Attack,
    measured,
    planned,
)

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
TIMEOUT_S = 60.0  # a context is made, and kernels are compiled
OF_CUDA = [one for one in ATTACKS if one.device != "cpu"]


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
