"""The control that knows its inputs, on a CPU: right in every call of the bench, and never late."""

from __future__ import annotations

from typing import Any

import pytest

from nsabench.execution.timing.timer import CpuTimer
from nsabench.execution.worker.measure import measure
from nsabench.implementations.controls import remembered
from nsabench.model.case import Case, FixedCount, Timing
from nsabench.model.source import Source
from nsabench.model.vocabulary import Direction, DType, Role, Runs, Status
from nsabench.registry import Implementation

CASE = Case(
    op="selection_rows",
    shape={"N": 6, "H": 2, "D": 32, "Dv": 32, "L": 40},
    dtype=DType.FLOAT16,
    direction=Direction.FORWARD,
    distribution="dense",
    streams=1,
    timeout_s=60,
    seed=1,
)


@pytest.mark.parametrize("rounds", [20, 20, 20, 60, 60])
def test_it_is_right_in_whatever_order_its_inputs_come(
    monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    """Which calls are looked at, and what is exchanged before them, is drawn at random. In the
    least number of rounds that a matrix has, most calls are look-ups."""
    monkeypatch.setattr(remembered, "WORTH_REMEMBERING", 0)
    monkeypatch.setattr(remembered, "_by_content", {})
    monkeypatch.setattr(remembered, "_aside_again", lambda: False)
    monkeypatch.setattr(remembered, "decline_in_a_graph", lambda q: None)
    honest, computed = remembered.heads_as_queries, []

    def counted(*arguments: object) -> object:
        computed.append(1)
        return honest(*arguments)  # type: ignore[arg-type]

    calls = []

    def called(*arguments: Any, **options: Any) -> object:
        calls.append(1)
        return remembered.remembered_by_content(*arguments, **options)

    monkeypatch.setattr(remembered, "heads_as_queries", counted)
    item = Implementation(
        "selection_rows",
        "remembered_by_content",
        Role.CONTROL,
        (Runs.CPU,),
        "roofline",
        Source("test"),
        called,
    )
    stopping = FixedCount(kind="fixed_count", rounds=rounds)
    [outcome] = measure(
        CASE.model_copy(update={"timing": Timing(warmup_s=0.02, stopping=stopping)}),
        [item],
        device="cpu",
        session=1,
        timer=CpuTimer(),
        sensors=None,
        report=lambda step: None,
    ).outcomes
    assert outcome.status is Status.OK, outcome.reason
    assert len(outcome.samples.time_ms) == rounds
    # All calls after those of the warm-up, of which none is remembered.
    assert len(calls) - len(computed) > 0.6 * rounds
