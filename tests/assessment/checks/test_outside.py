"""The supervisor's clock accuses who hides time, and nobody on a machine that is busy or slow."""

from __future__ import annotations

import pytest

from nsabench.assessment.checks.finding import Effect
from nsabench.assessment.checks.limits import Limits
from nsabench.assessment.checks.outside import check
from nsabench.assessment.checks.row import Row
from nsabench.assessment.verdict import by_the_supervisor, judge
from nsabench.model.measurement import Outside, Samples
from nsabench.model.vocabulary import DType, Role, Status, Verdict


def row(claim: float | None, seen: Outside | None, role: Role = Role.CANDIDATE) -> Row:
    return Row(
        case_id="a",
        op="selection_rows",
        implementation="mine",
        role=role,
        status=Status.OK,
        dtype=DType.FLOAT16,
        shape={"N": 4, "H": 2, "D": 32, "Dv": 32, "L": 8},
        length=8,
        bytes_min=1,
        flops=1,
        median_ms=claim,
        queued_ms=claim,
        outside=seen,
    )


def seen(time_ms: float, baseline: tuple[float, float] | None = None) -> Outside:
    """baseline: its time by its own clock, and by the supervisor's."""
    claim, beside = baseline or (None, None)
    return Outside(calls=10, time_ms=time_ms, baseline_ms=beside, baseline_claim_ms=claim)


@pytest.mark.parametrize(
    ("claim", "outside", "effect"),
    [
        (1.0, seen(1.1), None),
        (1.0, seen(0.2), None),  # its claim is long: inputs were colder then
        (1.0, seen(2.2), None),  # 1.3 of it, and what a look takes
        (0.01, seen(0.9), None),  # what a look takes is most of it
        (1.0, seen(10.0, (1.0, 1.1)), Effect.IMPLAUSIBLE),
        (0.01, seen(10.0, (0.01, 0.3)), Effect.IMPLAUSIBLE),
        (5.0, seen(30.0, (5.0, 20.0)), Effect.INCONCLUSIVE),  # so was a baseline
        (0.04, seen(6.0, (0.03, 2.0)), Effect.INCONCLUSIVE),
        (50.0, seen(200.0, (1.0, 4.0)), Effect.INCONCLUSIVE),
        (0.01, seen(10.0), Effect.INCONCLUSIVE),  # no baseline was there to ask
        (1.0, seen(3.0, (1.0, 1.0)), Effect.INCONCLUSIVE),  # too little to accuse anybody
        (0.003, seen(0.35, (0.02, 0.08)), Effect.INCONCLUSIVE),  # a hundred times as long
        (0.3, seen(0.4, (0.02, 0.08)), None),  # the same, honestly
        (1.0, Outside(reason="the referee was lost"), Effect.INCONCLUSIVE),
        (1.0, None, None),
        (None, seen(5.0), None),  # parity alone
    ],
)
def test_what_a_claim_beside_the_supervisors_clock_means(
    claim: float | None, outside: Outside | None, effect: Effect | None
) -> None:
    findings = check([row(claim, outside)], Limits())
    assert [finding.effect for finding in findings] == ([effect] if effect else [])
    if effect is Effect.IMPLAUSIBLE:
        assert "by the supervisor's" in findings[0].sentence


def test_the_shorter_claim_is_held_to_it() -> None:
    """Who lies to one of the two clocks of the worker."""
    one = row(10.0, seen(12.0, (0.1, 0.3)))
    assert check([one], Limits()) == []
    lying = Row(**{**one.__dict__, "queued_ms": 0.1})
    assert [f.effect for f in check([lying], Limits())] == [Effect.IMPLAUSIBLE]


def test_baselines_are_not_accused() -> None:
    assert check([row(0.01, seen(12.0, (0.1, 0.3)), Role.BASELINE)], Limits()) == []


@pytest.mark.parametrize(
    ("time_ms", "baseline", "is_no_faster_"),
    [
        (0.35, "sdpa", True),
        (0.05, "sdpa", False),
        (0.35, "", False),
        # An alias of the baseline whose own clock lies: as fast is not faster.
        (0.99 * 0.08, "sdpa", True),
        (0.08, "sdpa", True),
        (1.01 * 0.08, "sdpa", True),
        (0.97 * 0.08, "sdpa", False),
    ],
)
def test_faster_is_who_is_so_by_the_supervisors_clock(
    time_ms: float, baseline: str, is_no_faster_: bool
) -> None:
    """0.35 ms beside a baseline of 0.08, with all that a look takes, whatever it claims."""
    beside = seen(time_ms, (0.02, 0.08)).model_copy(update={"baseline": baseline})
    mine = row(0.003, beside)
    theirs = Row(**{**row(0.02, None, Role.BASELINE).__dict__, "implementation": "sdpa"})
    samples = {
        ("a", one.implementation): Samples(round=list(range(12)), time_ms=[one.median_ms or 0] * 12)
        for one in (mine, theirs)
    }
    judged = by_the_supervisor(judge([mine, theirs], samples, [])["a", "mine"], beside)
    expected = Verdict.INCONCLUSIVE if is_no_faster_ else Verdict.FASTER
    assert judged.verdict is expected, judged.why
    assert ("it is no faster" in judged.why) is is_no_faster_
