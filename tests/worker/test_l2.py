"""The axis `l2`: what is read before a warm sample, and that cold stays what it was."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from nsabench import labels
from nsabench.checks import Limits
from nsabench.checks.limits import least
from nsabench.errors import UsageError
from nsabench.model.case import Case
from nsabench.model.record import Record
from nsabench.model.vocabulary import L2, Role
from nsabench.ops import ladder
from nsabench.planning import matrix
from nsabench.registry import load
from nsabench.worker import inputs as worker_inputs
from nsabench.worker.timing.timer import CpuTimer
from tests.checking import arm_of, sets_of
from tests.runs import record

MATRIX = """
op: selection_rows
axes: {dtype: float32, N: 4, H: 2, D: 32, L: 48, l2: [cold, warm]}
timing: {rotate: 2}
"""


@pytest.fixture
def cases(tmp_path: Path) -> dict[L2, Case]:
    path = tmp_path / "m.yaml"
    path.write_text(MATRIX)
    [loaded] = matrix.load(path)
    return {case.l2: case for case in loaded.cases}


def test_a_matrix_spans_both_and_cold_has_the_id_it_always_had(cases, tmp_path: Path) -> None:
    (tmp_path / "plain.yaml").write_text(MATRIX.replace(", l2: [cold, warm]", ""))
    [plain] = matrix.load(tmp_path / "plain.yaml")
    assert [case.id for case in plain.cases] == [cases[L2.COLD].id]
    assert cases[L2.WARM].id != cases[L2.COLD].id
    assert labels.of_case(cases[L2.WARM]).endswith("warm L2")
    assert "L2" not in labels.of_case(cases[L2.COLD])
    assert ladder(cases[L2.WARM]) != ladder(cases[L2.COLD])
    (tmp_path / "bad.yaml").write_text(MATRIX.replace("warm", "tepid"))
    with pytest.raises(UsageError, match="l2"):
        matrix.load(tmp_path / "bad.yaml")


def test_before_a_warm_sample_the_inputs_of_its_set_are_read(cases, monkeypatch) -> None:
    case = cases[L2.WARM]
    sets, timer = sets_of(case), CpuTimer()
    timer.touch = sets.touch
    read: list[int] = []
    monkeypatch.setattr(worker_inputs, "_amax", lambda t: read.append(t.data_ptr()))
    item = next(i for i in load() if (i.op, i.name) == (case.op, "sdpa_heads_as_queries"))
    arm = arm_of(item, case, sets, Random(1))
    for round_ in (2, 3, 5):
        prepared = arm.prepare(round_)
        read.clear()
        timer.sample(arm.name, prepared)
        tensors = sets.sets[round_ % 2].tensors
        assert read == [tensors["k"].data_ptr(), tensors["v"].data_ptr()]
    timer.forget()
    assert timer.touch is None


def test_warm_inputs_are_held_to_the_bandwidth_of_the_l2() -> None:
    def row(l2: L2) -> Record:
        return record("i", Role.CANDIDATE, bytes_min=4_000_000_000, flops=0, l2=l2)

    limits = Limits(memory_gb_s=4000, l2_gb_s=10_000)
    cold, warm = least(row(L2.COLD), limits), least(row(L2.WARM), limits)
    assert cold is not None and cold.ms == pytest.approx(1.0)
    assert warm is not None and warm.ms == pytest.approx(0.4)
