"""Plans for the tests of the supervisor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from nsabench import registry
from nsabench.model.case import Case, FixedCount, Timing
from nsabench.model.plan import ImplementationInfo, Plan, PlannedCase
from nsabench.model.source import Source
from nsabench.model.vocabulary import Direction, DType, Role, Runs

HOSTILE = Path(__file__).parent / "hostile.py"

MakePlan = Callable[..., Plan]


@pytest.fixture
def make_plan() -> MakePlan:
    def make(
        names: Sequence[str],
        *,
        lengths: Sequence[int] = (16,),
        timeout_s: float = 3.0,
        kernels: Path = HOSTILE,
    ) -> Plan:
        cases = [
            Case(
                op="selection_rows",
                shape={"N": 4, "H": 2, "D": 32, "Dv": 32, "L": length},
                dtype=DType.FLOAT16,
                direction=Direction.FORWARD,
                distribution="dense",
                streams=1,
                timeout_s=timeout_s,
                seed=1,
                # A count and no time: the machine may be busy.
                timing=Timing(warmup_s=0.005, stopping=FixedCount(kind="fixed_count", rounds=12)),
            )
            for length in lengths
        ]
        sources = registry.sources(kernels)
        own = Source.of_file(kernels, kernels.read_bytes())
        return Plan(
            run_id="test",
            created=datetime(2026, 1, 1, tzinfo=UTC),
            device="cpu",
            kernels=str(kernels),
            kernels_sha256=sources[own],
            sources=sources,
            matrices=[],
            implementations=[
                ImplementationInfo(
                    op="selection_rows",
                    name=name,
                    role=Role.BASELINE if name == "sdpa_gqa" else Role.CANDIDATE,
                    devices=(Runs.CUDA, Runs.CPU),
                    source="nsabench" if name == "sdpa_gqa" else own,
                )
                for name in names
            ],
            cases=[PlannedCase(id=c.id, case=c, implementations=tuple(names)) for c in cases],
        )

    return make
