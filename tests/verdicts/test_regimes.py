"""The verdict for queued calls has its own times and its own baseline, apart from the device's."""

from dataclasses import replace

import numpy as np
import pytest

from nsabench.checks import Effect, Finding
from nsabench.model.measurement import Bursts, Observation
from nsabench.model.vocabulary import Mode, Regime, Role, Status, Verdict
from nsabench.verdicts.tables import read_records
from nsabench.verdicts.verdict import compare_records, revise
from tests.runs import Made, confirmation, isolated, make_run, record


def bursts(ms, count=8):
    return Bursts(calls=[9] * count, time_ms=[ms * (1 + 1e-4 * i) for i in range(count)])


def row(name, role, ms, queued, n_samples=20):
    return record(name, role, ms, bursts=queued, n_samples=n_samples)


# On the device, `dense` is the best. From Python, `lean` is, since its host time is short.
MINE = row("mine", Role.CANDIDATE, 0.008, bursts(0.040))
DENSE = row("dense", Role.BASELINE, 0.009, bursts(0.060))
LEAN = row("lean", Role.BASELINE, 0.020, bursts(0.014), n_samples=5)  # an early exit
ROWS = [MINE, DENSE, LEAN]


def queue(records=ROWS, findings=()):
    return compare_records(records, findings)[0].comparison(Regime.QUEUE)


def test_the_queue_has_a_best_baseline_of_its_own():
    judged = queue()
    assert (judged.verdict, judged.against) == (Verdict.SLOWER, "lean")
    assert judged.ratio == pytest.approx(0.35)


FAILED = record("mine", Role.CANDIDATE, status=Status.WRONG, reason="off")
FEW = row("mine", Role.CANDIDATE, 0.008, bursts(0.04, count=4))


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([replace(r, mode=Mode.GRAPH) for r in ROWS], None),
        ([row(r.implementation, r.role, 0.01, None) for r in ROWS], None),
        ([FAILED, DENSE, LEAN], Verdict.INVALID),
        ([FEW, DENSE, LEAN], Verdict.INCONCLUSIVE),
    ],
    ids=["graphs", "no bursts", "a failure", "too few bursts"],
)
def test_what_has_no_ratio_in_the_queue(records, expected):
    assert (queue(records).verdict, queue(records).ratio) == (expected, None)


@pytest.mark.parametrize(
    ("regime", "queue_verdict"),
    [(Regime.QUEUE, Verdict.INVALID), (Regime.DEVICE, Verdict.SLOWER), (None, Verdict.INVALID)],
)
def test_a_finding_of_one_regime_has_no_say_in_another(regime, queue_verdict):
    missed = Finding("controls", Effect.INVALID, "missed", implementation="x", regime=regime)
    assert queue(findings=(missed,)).verdict is queue_verdict


def test_a_failure_in_a_second_process_ends_the_verdict_of_each_regime():
    failing = Observation(implementation="mine", status=Status.CRASHED, reason="SIGSEGV")
    first = compare_records(ROWS, ())
    revised = revise(first[0], first, confirmation("c", [failing]))
    for regime in (Regime.DEVICE, Regime.QUEUE):
        judged = revised.comparison(regime)
        assert judged.verdict is Verdict.INVALID and "SIGSEGV" in judged.reason


def test_a_baseline_that_the_candidate_slows_in_the_queue_counts_as_it_is_alone():
    """A candidate's lasting thread delays the host, but not the device."""
    slowed = [
        row("dense", Role.BASELINE, 0.009, bursts(0.09)),
        row("lean", Role.BASELINE, 0.020, bursts(0.06), n_samples=5),
    ]
    first = compare_records([MINE, *slowed], ())
    assert first[0].comparison(Regime.QUEUE).verdict is Verdict.FASTER
    alone = [
        Observation(implementation=name, status=Status.OK, bursts=bursts(time))
        for name, time in (("dense", 0.03), ("lean", 0.06))
    ]
    revised = revise(first[0], first, None, isolated("c", alone), ["dense", "lean"])
    judged = revised.comparison(Regime.QUEUE)
    assert judged.verdict is Verdict.INCONCLUSIVE
    assert judged.ratio == pytest.approx(0.75) and judged.against == "dense"


def test_the_record_holds_both_verdicts(tmp_path):
    made = Made(ratio=lambda _: 1.5, queue_ratio=lambda length: 0.35 if length < 256 else 1.4)
    run = make_run(tmp_path / "run", made)
    records = [r for r in read_records(run) if r.implementation == "mine"]
    assert {r.verdict for r in records} == {Verdict.FASTER}
    for r in records:
        queue = r.compared(Regime.QUEUE)
        assert queue is not None and r.regime is Regime.DEVICE
        assert queue.verdict is (Verdict.SLOWER if r.length < 256 else Verdict.FASTER)
        assert queue.against == "sdpa_gqa"
        assert queue.lo <= queue.ratio <= queue.hi


def test_equal_pairs_are_seldom_called_unequal_in_the_queue():
    """At most 2 % of 200 equal pairs are `faster` or `slower`, with the noise of a busy host."""
    rng = np.random.default_rng(0)

    def taken():
        times = 1 + 0.02 * np.abs(rng.standard_normal(8))
        return Bursts(calls=[9] * 8, time_ms=[float(t) for t in times])

    verdicts = [
        queue([row("mine", Role.CANDIDATE, 1, taken()), row("best", Role.BASELINE, 1, taken())])
        for _ in range(200)
    ]
    unequal = [v for v in verdicts if v.verdict in (Verdict.FASTER, Verdict.SLOWER)]
    assert len(unequal) <= 4
