"""Baselines that are too slow for a speed-up."""

import pytest

from nsabench.checks import DeviceLimits, Effect
from nsabench.checks.roofline import check_baseline
from nsabench.model.vocabulary import Status

H200 = DeviceLimits("measured in this run", memory_gb_s=4250.0, tflop_s={"float16": 790.0})
SMALL = {"N": 256, "H": 4, "D": 64, "L": 64}
LOOP = ("loop", "baseline", 42.0, {**SMALL, "gap_hidden_share": 0.0})


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (  # a sleeping wrapper is not the best baseline
            [
                ("sleeping", "control", 5.3, {}),
                ("expand", "baseline", 0.4727, {}),
                ("gqa", "baseline", 0.1368, {}),
                ("mine", "candidate", 9.0, {}),
            ],
            [("sleeping", Effect.NOTE), ("expand", Effect.NOTE)],
        ),
        (  # a baseline that runs for a control shows slowness, and no candidate is held to it
            [
                ("sleeping", "control", 9.0, SMALL),
                LOOP,
                ("wrapped", "baseline", 0.02, {**SMALL, "alongside": True}),
                ("mine", "candidate", 0.02, SMALL),
            ],
            [("sleeping", Effect.NOTE), ("loop", Effect.NOTE), ("", Effect.INCONCLUSIVE)],
        ),
        (  # wrong baselines do not count
            [
                ("slow", "baseline", 5.0, {}),
                ("wrong", "baseline", 0.01, {"mae": 0.1}),
                ("failed", "baseline", 0.01, {"status": Status.WRONG}),
            ],
            [("", Effect.NOTE)],
        ),
        ([LOOP, ("mine", "candidate", 0.02, SMALL)], [("", Effect.INCONCLUSIVE)]),
        # Masked attention over all keys is slow on short spans, and may be the best for an op.
        ([("masked", "baseline", 42.0, SMALL)], [("", Effect.NOTE)]),
        ([("launch_bound", "baseline", 0.0137, SMALL)], []),
    ],
)
def test_slow_baselines(make_row, rows, found):
    records = [make_row(name, role, ms, **fields) for name, role, ms, fields in rows]
    findings = check_baseline(records, H200)
    assert [(f.implementation, f.effect) for f in findings] == found


@pytest.mark.parametrize("limits", [DeviceLimits(), DeviceLimits(memory_gb_s=37.0)])
def test_without_a_compute_rate_no_baseline_is_called_slow(make_row, limits):
    assert check_baseline([make_row("loop", "baseline", 42.0, **SMALL)], limits) == []
