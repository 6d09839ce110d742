"""The verdict in the queue beside that of the device: of its own times, and its own baseline."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nsabench.checks import Effect, Finding, Row
from nsabench.model.case import Case
from nsabench.model.measurement import Bursts, Observation
from nsabench.model.plan import Plan
from nsabench.model.record import Record
from nsabench.model.vocabulary import DType, Mode, Regime, Role, Status, Verdict
from nsabench.verdicts.tables import read_records
from nsabench.verdicts.verdict import Aside, Judgement, judge, revised
from tests.runs import Made, confirmation, isolated, make_run


def row(name: str, role: Role, median_ms: float, queued_ms: float | None, **fields: object) -> Row:
    given = {
        "case_id": "c",
        "op": "selection_rows",
        "implementation": name,
        "role": role,
        "status": Status.OK,
        "dtype": DType.FLOAT16,
        "shape": {},
        "length": 64,
        "bytes_min": 1,
        "flops": 1,
        "median_ms": median_ms,
        "queued_ms": queued_ms,
        "attempt": 1,
        "n_samples": 20,
    }
    return Row(**{**given, **fields})  # type: ignore[arg-type]


def bursts(ms: float, count: int = 8) -> Bursts:
    return Bursts(calls=[9] * count, time_ms=[ms * (1 + 1e-4 * i) for i in range(count)])


# On the device `dense` is the best, and from Python `lean` is, since its host is quick.
ROWS = [
    row("mine", Role.CANDIDATE, 0.008, 0.040),
    row("dense", Role.BASELINE, 0.009, 0.060),
    row("lean", Role.BASELINE, 0.020, 0.014, n_samples=5),  # it left the samples early
]
TIMES = {("c", r.implementation): bursts(r.queued_ms or 1.0) for r in ROWS}


def queue(rows: list[Row] = ROWS, findings: tuple[Finding, ...] = ()) -> Judgement | None:
    return judge(rows, TIMES, findings, Regime.QUEUE).get(("c", "mine"))


def test_the_queue_has_a_best_baseline_of_its_own() -> None:
    judgement = queue()
    assert judgement is not None
    assert (judgement.verdict, judgement.best_baseline) == (Verdict.SLOWER, "lean")
    assert judgement.speedup == pytest.approx(0.35)


@pytest.mark.parametrize(
    "rows",
    [
        [replace(r, mode=Mode.GRAPH) for r in ROWS],
        [replace(r, streams=4) for r in ROWS],
        [replace(r, queued_ms=None) for r in ROWS],
    ],
)
def test_graphs_calls_at_once_and_cases_without_bursts_have_no_queue(rows: list[Row]) -> None:
    assert queue(rows) is None


def test_a_failure_is_none_in_any_regime() -> None:
    judgement = queue([replace(ROWS[0], status=Status.WRONG, reason="off"), *ROWS[1:]])
    assert judgement == Judgement(Verdict.INVALID, "off")


def test_too_few_bursts_are_inconclusive() -> None:
    times = {**TIMES, ("c", "mine"): bursts(0.04, count=4)}
    judgement = judge(ROWS, times, (), Regime.QUEUE)["c", "mine"]
    assert (judgement.verdict, judgement.speedup) == (Verdict.INCONCLUSIVE, None)
    assert judgement.why.startswith("only 4 rounds")


@pytest.mark.parametrize(
    ("regime", "queue_verdict"),
    [(Regime.QUEUE, Verdict.INVALID), (Regime.DEVICE, Verdict.SLOWER), (None, Verdict.INVALID)],
)
def test_a_finding_of_one_regime_has_no_say_in_another(
    regime: Regime | None, queue_verdict: Verdict
) -> None:
    missed = Finding("controls", Effect.INVALID, "missed", implementation="x", regime=regime)
    judgement = queue(findings=(missed,))
    assert judgement is not None and judgement.verdict is queue_verdict


def test_a_failure_in_a_second_process_ends_the_verdict_of_each_regime() -> None:
    failing = Observation(implementation="mine", status=Status.CRASHED, reason="SIGSEGV")
    state = confirmation("c", [failing])
    first = judge(ROWS, TIMES, (), Regime.QUEUE)
    judged = revised(first, TIMES, {"c": state}, regime=Regime.QUEUE)["c", "mine"]
    assert judged.verdict is Verdict.INVALID and "SIGSEGV" in judged.why


def test_a_baseline_that_the_candidate_slows_in_the_queue_counts_as_it_is_alone() -> None:
    """A thread that goes on beside the baselines takes their host, and not their device."""
    times = {("c", "mine"): bursts(0.04), ("c", "lean"): bursts(0.06), ("c", "dense"): bursts(0.09)}
    rows = [ROWS[0], replace(ROWS[1], queued_ms=0.09), replace(ROWS[2], queued_ms=0.06)]
    first = judge(rows, times, (), Regime.QUEUE)
    assert first["c", "mine"].verdict is Verdict.FASTER
    alone = Observation(implementation="lean", status=Status.OK, bursts=bursts(0.03))
    mine = ("c", "mine")
    asides = {mine: Aside(isolated("c", [alone]), "lean")}
    judged = revised(first, times, {}, asides, regime=Regime.QUEUE)[mine]
    assert judged.verdict is Verdict.INCONCLUSIVE
    assert judged.speedup == pytest.approx(0.75)


def test_the_record_holds_both_verdicts(tmp_path: Path) -> None:
    made = Made(ratio=lambda _: 1.5, queue_ratio=lambda length: 0.35 if length < 256 else 1.4)
    run = make_run(tmp_path / "run", made)
    records = [r for r in read_records(run) if r.implementation == "mine"]
    assert {r.verdict for r in records} == {Verdict.FASTER}
    for r in records:
        queue = r.compared(Regime.QUEUE)
        assert queue is not None and r.regime is Regime.DEVICE
        assert queue.verdict is (Verdict.SLOWER if r.length < 256 else Verdict.FASTER)
        assert queue.against == "sdpa_gqa"
        assert queue.lo <= queue.ratio <= queue.hi  # type: ignore[operator]


def test_without_bursts_nothing_is_compared_in_the_queue(tmp_path: Path) -> None:
    records = read_records(make_run(tmp_path / "run", Made()))
    assert {r.compared(Regime.QUEUE) for r in records} == {None}


def test_a_record_in_graph_mode_is_of_that_regime(tmp_path: Path) -> None:
    made = Made(queue_ratio=lambda _: 1.4)

    def in_graphs(plan: Plan) -> Plan:
        cases = []
        for planned in plan.cases:
            timing = planned.case.timing.model_copy(update={"mode": Mode.GRAPH})
            case = Case(**{**planned.case.model_dump(), "timing": timing})
            cases.append(planned.model_copy(update={"case": case, "id": case.id}))
        return plan.model_copy(update={"cases": cases})

    records: list[Record] = read_records(make_run(tmp_path / "run", made, change=in_graphs))
    mine = [r for r in records if r.implementation == "mine"]
    assert {r.regime for r in mine} == {Regime.GRAPH}
    assert {c.regime for r in mine for c in r.comparisons} == {Regime.GRAPH}
    assert all(r.verdict for r in mine)


def test_equal_pairs_are_seldom_called_unequal_in_the_queue() -> None:
    """At most 2 % of 200, with the noise of a host that is not alone."""
    rng = np.random.default_rng(0)

    def taken() -> Bursts:
        times = 1 + 0.02 * np.abs(rng.standard_normal(8))
        return Bursts(calls=[9] * 8, time_ms=[float(t) for t in times])

    rows = [row("mine", Role.CANDIDATE, 1, 1), row("best", Role.BASELINE, 1, 1)]
    verdicts = [
        judge(rows, {("c", "mine"): taken(), ("c", "best"): taken()}, (), Regime.QUEUE)["c", "mine"]
        for _ in range(200)
    ]
    unequal = [v for v in verdicts if v.verdict in (Verdict.FASTER, Verdict.SLOWER)]
    assert len(unequal) <= 4
