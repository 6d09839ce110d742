"""The control that knows its inputs, on a CPU: right in every call of the bench, and never late."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from nsabench import ops
from nsabench.implementations.baselines.selection_rows import heads_as_queries
from nsabench.implementations.controls import roofline
from nsabench.model.source import Source
from nsabench.model.vocabulary import Role, Runs, Status
from nsabench.registry import Honest, Implementation
from tests.checking import a_case, observations, rounds

CASE = a_case("selection_rows", {"N": 6, "H": 2, "D": 32, "Dv": 32, "L": 40})


@pytest.mark.parametrize(("count", "rotate"), [(8, 2), (20, 3), (60, 5)])
def test_it_is_right_in_whatever_order_its_inputs_come(
    monkeypatch: pytest.MonkeyPatch, count: int, rotate: int
) -> None:
    """Which calls are looked at, and what is exchanged before them, is drawn at random. In the
    least number of rounds that a matrix has, most calls are look-ups."""
    monkeypatch.setattr(roofline, "_memories", {})
    monkeypatch.setattr(roofline, "aside_again", lambda: False)
    calls, computed = [], []

    def counted(*arguments: Any, **options: Any) -> Tensor:
        computed.append(1)
        return heads_as_queries(*arguments, **options)

    honest = Honest(ops.get("selection_rows"), "counted", counted)

    def called(*arguments: Any, **options: Any) -> object:
        calls.append(1)
        return roofline.remembered_by_content(honest, *arguments, **options)

    item = Implementation(
        "selection_rows",
        "remembered_by_content",
        Role.CONTROL,
        (Runs.CPU,),
        "roofline",
        Source("test"),
        called,
    )
    timing = rounds(count, warmup_s=0.02, rotate=rotate)
    [observation] = observations(CASE.model_copy(update={"timing": timing}), [item])
    assert observation.status is Status.OK, observation.reason
    assert len(observation.samples.time_ms) == count
    # All timed calls but those of the first time around, unless a set shows itself late.
    assert len(calls) - len(computed) >= count - 2 * rotate
