"""Verdicts, and the confirmation of those that are close to a limit."""

from dataclasses import replace

import numpy as np
import pytest

from nsabench.checks import Effect, Finding
from nsabench.model.measurement import Ceilings, Conditions, Observation, Samples
from nsabench.model.vocabulary import Purpose, Reference, Regime, Role, Status, Verdict
from nsabench.verdicts.results import RunLog, assemble
from nsabench.verdicts.verdict import compare_records, needs_confirmation, revise
from tests.runs import (
    Made,
    add_attempt,
    confirmation,
    isolated,
    log_of,
    make_plan,
    observations_of,
    record,
    spoilt,
    timed,
)


def samples(ms, spread=1e-4, step=7, count=50):
    times = [ms * (1 + spread * ((step * i) % 11 - 5)) for i in range(count)]
    return Samples(round=list(range(count)), time_ms=times)


def verdict(ratio, *, spread=1e-4, count=50, findings=(), second=None, alone=None, **fields):
    mine = record("mine", Role.CANDIDATE, samples=samples(1.0, spread, count=count), **fields)
    best = record("best", Role.BASELINE, samples=samples(ratio, spread, step=3, count=count))
    wrong = record("wrong", Role.BASELINE, status=Status.WRONG)
    mine, *others = compare_records([mine, best, wrong], findings)
    return revise(mine, [mine, *others], second, alone, ["best"]).own


MISSED = Finding("controls", Effect.INVALID, "not caught", implementation="cheat")
THROTTLED = Finding("clocks", Effect.INCONCLUSIVE, "throttled", case_id="c")


@pytest.mark.parametrize(
    ("ratio", "given", "expected", "has_ratio"),
    [
        (1.5, {}, Verdict.FASTER, True),
        (0.5, {}, Verdict.SLOWER, True),
        (1.0, {}, Verdict.SAME, True),
        (1.005, {}, Verdict.SAME, True),
        (1.02, {}, Verdict.FASTER, True),
        (1.0, {"spread": 0.05}, Verdict.INCONCLUSIVE, True),
        (1.5, {"status": Status.WRONG, "reason": "off"}, Verdict.INVALID, False),
        (1.5, {"status": Status.UNSUPPORTED, "reason": "cannot"}, None, False),
        (1.5, {"attempt": 2}, Verdict.INCONCLUSIVE, False),  # not interleaved
        # With one round, both ends of the bootstrap's interval equal its ratio.
        (1.5, {"count": 1}, Verdict.INCONCLUSIVE, False),
        (1.5, {"count": 4}, Verdict.INCONCLUSIVE, False),
        (1.5, {"count": 5}, Verdict.FASTER, True),
        (1.5, {"findings": (MISSED,)}, Verdict.INVALID, False),
        (1.5, {"findings": (THROTTLED,)}, Verdict.INCONCLUSIVE, True),
    ],
)
def test_what_a_ratio_says(ratio, given, expected, has_ratio):
    judgement = verdict(ratio, **given)
    assert judgement.verdict is expected
    assert judgement.ratio == (pytest.approx(ratio, rel=1e-3) if has_ratio else None)
    assert judgement.against == "best" or not has_ratio


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        (1.5, False),
        (0.5, False),
        (1.2, True),
        (1.205, True),
        (1.015, True),
        (1.025, True),
        (1.218, False),  # 1.5 % over the margin
        (1.0, False),
    ],
)
def test_what_hangs_on_little(ratio, expected):
    assert needs_confirmation(verdict(ratio)) is expected


def observed(count=50, **times):
    """Return observations of these times in ms."""
    return [
        Observation(implementation=name, status=Status.OK, samples=samples(ms, count=count))
        for name, ms in times.items()
    ]


def again(ratio, count=50):
    return confirmation("c", observed(count, mine=1.0, best=ratio))


@pytest.mark.parametrize(("offset", "most"), [(0.006, 0.01), (0.01, 0.05)])
def test_a_kernel_against_itself_is_hardly_ever_faster(offset, most):
    """A process changes the ratio by a factor, whose logarithm has the deviation `offset`."""
    rng, trials, faster = np.random.default_rng(5), 300, 0
    for _ in range(trials):
        first, second = np.exp(offset * rng.standard_normal(2))
        judgement = verdict(first, count=20)
        if needs_confirmation(judgement):
            judgement = verdict(first, count=20, second=again(second, count=20))
        faster += judgement.verdict is Verdict.FASTER
    assert faster / trials <= most


def test_no_reason_replaces_another():
    """The reason names a faster baseline of the candidate's package, findings, and later passes."""
    mine = record("mine", Role.CANDIDATE, samples=samples(1.0))
    own = record("own", Role.BASELINE, source=mine.source, samples=samples(0.9, step=3))
    best = record("best", Role.BASELINE, samples=samples(1.205, step=3))
    found = [Finding("clocks", Effect.INCONCLUSIVE, why, "c") for why in ("hot", "shared")]
    said = "own, a baseline from its own package, takes 0.9 ms and does not decide; best takes 1.2"
    doubtful = compare_records([mine, own, best], found)[0].own
    assert (doubtful.verdict, doubtful.ratio) == (Verdict.INCONCLUSIVE, pytest.approx(1.205))
    assert doubtful.reason.startswith(f"shared; hot; {said}")
    first, *others = compare_records([mine, own, best], ())
    assert first.own.verdict is Verdict.FASTER and first.own.reason.startswith(said)
    revised = revise(first, others, again(1.19), without_the_candidate(1.0), ["best"]).own
    assert revised.verdict is Verdict.INCONCLUSIVE
    apart, seen, kept = (
        revised.reason.index(words)
        for words in ("process without candidates", "a second process saw", said)
    )
    assert apart < seen < kept


HOT = Conditions(clock_event_reasons=["hw_thermal_slowdown"])
SHARED = Conditions(competing_processes=1)


CAPPED = Conditions(
    clock_event_reasons=["sw_power_cap"], sm_clock_mhz_min=1584, sm_clock_mhz_max=1980
)


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [(1.5, Verdict.FASTER), (1.2, Verdict.INCONCLUSIVE), (0.7, Verdict.SLOWER), (0.9, None)],
)
def test_under_the_power_cap_an_interval_reaches_as_far_as_the_clock_moved(ratio, expected):
    """Clocks differ 1.25-fold, so the interval of a ratio of 1.5 is 1.2 to 1.875."""
    judgement = verdict(ratio, conditions=CAPPED)
    assert judgement.verdict is (expected or Verdict.INCONCLUSIVE)
    assert judgement.ratio == pytest.approx(ratio)
    assert judgement.lo == pytest.approx(ratio / 1.25, rel=1e-3)
    assert judgement.hi == pytest.approx(ratio * 1.25, rel=1e-3)


def test_a_baseline_that_was_dropped_early_cannot_become_the_best_by_drift():
    """Calls take a fifth longer after round 20, so early medians flatter a baseline that was
    dropped there."""
    steps = [1.0] * 20 + [1.2] * 180
    times = [ms * (1 + 1e-5 * (i % 7)) for i, ms in enumerate(steps)]
    late = Samples(round=list(range(200)), time_ms=times)
    records = [
        record("mine", Role.CANDIDATE, samples=late),
        record("best", Role.BASELINE, samples=late),
        record("dropped", Role.BASELINE, 1.12),
    ]
    judgement = compare_records(records, ())[0].own
    assert (judgement.verdict, judgement.against) == (Verdict.SAME, "best")


def without_the_candidate(best, **others):
    return isolated("c", observed(best=best, **others))


@pytest.mark.parametrize("ours", ["mine", "best"])
@pytest.mark.parametrize(
    ("apart", "lo", "said"),
    [
        ({"dense": 3.0}, 3.0, ""),
        ({"dense": 1.02}, 1.02 / 1.03, "the best alternative takes 3 ms in one with candidates"),
        ({"dense": 3.0, "other": 0.9}, 0.9 / 1.03, "other takes 0.9 ms"),
        ({"other": 3.0}, None, "dense was not timed there"),
    ],
)
def test_an_alternative_that_was_slowed_beside_a_candidate_is_held_to_its_time_apart(
    ours, apart, lo, said
):
    """A candidate's thread can hold the Python interpreter while alternatives are timed."""
    made = [
        record("mine", Role.CANDIDATE, samples=samples(1.0)),
        record("best", Role.BASELINE, samples=samples(1.0, step=3)),
        record("dense", Role.ALTERNATIVE, samples=samples(3.0, step=5)),
        record("other", Role.ALTERNATIVE, samples=samples(4.0, step=5)),
    ]
    case = compare_records(made, ())
    alone = isolated("c", observed(**apart))
    [own] = [r for r in case if r.implementation == ours]
    revised = revise(own, case, None, alone, clean=["dense", "other"])
    beside = revised.compared(Regime.DEVICE, Reference.ALTERNATIVE)
    assert beside is not None and said in beside.reason
    assert beside.lo == (None if lo is None else pytest.approx(lo, rel=0.01))
    assert (beside.ratio is None) == (lo is None)


def lost_apart():
    """Make an isolated pass in which the best baseline runs out of memory, not a slow one."""
    lost = Observation(implementation="best", status=Status.OUT_OF_MEMORY, reason="80 GB asked")
    return isolated("c", [lost, *observed(other=9.0)])


def under(conditions, state):
    return replace(state, conditions={0: conditions})


@pytest.mark.parametrize(
    ("ratio", "passes"),
    [
        (1.015, {"second": again(1.016)}),
        (1.5, {"second": again(0.5)}),
        *((1.5, {"alone": without_the_candidate(best)}) for best in (1.5, 1.46, 2.0)),
        (0.5, {"alone": without_the_candidate(0.1)}),
    ],
)
def test_later_passes_that_agree_or_are_not_needed_change_nothing(ratio, passes):
    assert verdict(ratio, **passes) == verdict(ratio)


@pytest.mark.parametrize(
    ("ratio", "passes", "why"),
    [
        (1.015, {"second": again(0.98)}, "0.980"),
        (1.015, {"second": confirmation("c", reason="killed")}, "killed"),
        (1.015, {"second": under(HOT, again(1.016))}, "hw_thermal_slowdown"),
        (1.015, {"second": under(SHARED, again(1.016))}, "1 other process"),
        (1.015, {"second": again(1.016, count=4)}, "only 4 rounds"),
        (1.015, {"second": under(CAPPED, again(1.016))}, "0.813 to 1.270"),
        (1.5, {"alone": without_the_candidate(1.0)}, "in a process without candidates"),
        # The candidate is the baseline's code, and slowed the baseline 1.74-fold.
        (1.74, {"alone": without_the_candidate(1.015)}, ""),
        # The candidate slowed all baselines, and `other` most.
        (1.5, {"alone": without_the_candidate(1.5, other=0.9)}, "other takes 0.9 ms"),
        (1.5, {"alone": under(HOT, without_the_candidate(1.5))}, "while the case was measured"),
        (1.5, {"alone": under(SHARED, without_the_candidate(1.5))}, "while the case was measured"),
        (1.5, {"alone": lost_apart()}, "80 GB asked"),
        (1.5, {"alone": isolated("c", reason="killed by SIGSEGV")}, "SIGSEGV"),
    ],
)
def test_later_passes_that_disagree_or_were_disturbed_make_it_inconclusive(ratio, passes, why):
    judgement = verdict(ratio, **passes)
    assert judgement.verdict is Verdict.INCONCLUSIVE and why in judgement.reason


@pytest.mark.parametrize(
    ("ratio", "passes", "lo", "left"),
    [
        # A margin that only one process reached is not reached.
        (1.205, {"second": again(1.19)}, 1.19, 1.205),
        (1.52, {"second": under(CAPPED, again(1.5)), "conditions": CAPPED}, None, 1.52),
        # Clocks may differ 1.25-fold, so a baseline less than 1.25 times slower apart proves
        # nothing.
        (1.5, {"alone": under(CAPPED, without_the_candidate(1.5))}, 1.5 / 1.25 / 1.03, None),
        (1.5, {"alone": under(CAPPED, without_the_candidate(1.9))}, 1.5, None),
        (3.0, {"alone": without_the_candidate(2.0)}, 2.0 / 1.03, 2.0),
    ],
)
def test_what_later_passes_leave_of_an_advantage_still_counts(ratio, passes, lo, left):
    judgement = verdict(ratio, **passes)
    assert judgement.verdict is Verdict.FASTER
    assert lo is None or judgement.lo == pytest.approx(lo, rel=0.01)
    assert left is None or judgement.ratio == pytest.approx(left, rel=0.01)


def confirmed(made, observations):
    """Return the results of a run with these observations as the confirmation of its first case."""
    plan, rng = make_plan(made), np.random.default_rng(0)
    log = log_of(plan, ceilings=made.ceilings)
    for planned in plan.cases:
        first = list(observations_of(planned, made, rng))
        add_attempt(log, plan, Purpose.MAIN, planned.id, first)
    add_attempt(log, plan, Purpose.CONFIRMATION, plan.cases[0].id, observations)
    return assemble(plan.run_id, [RunLog(plan, log)])


@pytest.mark.parametrize(
    ("seen", "status"), [(Status.WRONG, Status.WRONG), (Status.UNSUPPORTED, Status.CRASHED)]
)
def test_the_record_of_what_failed_in_a_second_process_is_not_ok(seen, status):
    """Exit codes and gates depend on the status."""
    made = Made(lengths=(64,), shapes=((256, 4, 64),), ratio=lambda _: 1.2)
    results = confirmed(made, [Observation(implementation="mine", status=seen, reason="not now")])
    mine, _ = (r for r in results.records if r.implementation == "mine")
    assert (mine.status, mine.verdict, mine.median_ms) == (status, Verdict.INVALID, None)
    assert "not now" in mine.reason
    assert any("not now" in line for line in results.failures)


def test_what_is_inconclusive_already_needs_no_confirmation():
    findings = {"findings": (THROTTLED,)}
    assert not needs_confirmation(verdict(1.2, **findings))
    assert verdict(1.2, **findings, second=again(1.2)).reason == "throttled"


@pytest.mark.parametrize(
    ("update", "median_ms", "status", "reason"),
    [
        ({"rel_l2": 0.9}, 0.2 / 1.2, Status.WRONG, "relative L2 error 0.9"),
        ({"mae": 0.5}, 0.2 / 1.2, Status.WRONG, "mean absolute error 0.5"),
        ({"escaped_ms": 0.05}, 0.2 / 1.2, Status.WRONG, "in 100% of the samples work went on"),
        ({}, 0.0005, Status.IMPLAUSIBLE, "times faster than possible"),
    ],
)
def test_what_a_second_process_computed_is_held_to_the_same_checks(
    update, median_ms, status, reason
):
    """The worker checks only the mean error. Other checks follow when the run is assessed."""
    ceilings = Ceilings(copy_gb_s=4250)
    made = Made(lengths=(64,), shapes=((256, 4, 64),), ratio=lambda _: 1.2, ceilings=ceilings)
    rng = np.random.default_rng(1)
    rough = spoilt(timed("mine", median_ms, made, rng), update)
    results = confirmed(made, [timed("sdpa_gqa", 0.2, made, rng), rough])
    mine, _ = (r for r in results.records if r.implementation == "mine")
    assert (mine.status, mine.verdict, mine.speedup) == (status, Verdict.INVALID, None)
    assert reason in mine.reason


@pytest.mark.parametrize("found_by", ["worker", "parity"])
def test_the_record_says_what_the_second_process_saw(found_by):
    """The record has the errors and the diagnosis of the second process, because the main pass
    found nothing wrong."""
    made = Made(lengths=(64,), shapes=((256, 4, 64),), ratio=lambda _: 1.2)
    seen = {
        "mae": 2e-4,
        "max_abs_err": 0.8,
        "rel_l2": 0.9,
        "worst_row": 1.0,
        "worst_row_at": "output[255, 3]",
        "diagnosis": "the last row is lost",
    }
    rng = np.random.default_rng(1)
    again = timed("mine", 0.2 / 1.2, made, rng).model_copy(update=seen)
    if found_by == "worker":
        again = Observation(implementation="mine", status=Status.WRONG, reason="a NaN", **seen)
    records = confirmed(made, [timed("sdpa_gqa", 0.2, made, rng), again]).records
    mine, other = (r for r in records if r.implementation == "mine")
    assert {name: getattr(mine, name) for name in seen} == seen
    assert (mine.status, mine.median_ms, mine.own.n_samples) == (Status.WRONG, None, 0)
    assert (other.status, other.rel_l2, other.diagnosis) == (Status.OK, 1e-5, "")
