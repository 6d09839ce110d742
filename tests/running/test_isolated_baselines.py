"""Isolated baselines decide whether a candidate's `faster` holds."""

import re
from dataclasses import replace

import numpy as np
import pytest

from nsabench import sources
from nsabench.machine.environment.nvml import POWER_CAP
from nsabench.model.job import Death
from nsabench.model.measurement import Bursts, Ceilings, Conditions, Observation, Samples
from nsabench.model.source import Source
from nsabench.model.vocabulary import Purpose, Reference, Regime, Status, Verdict
from nsabench.running.clients import WorkerClient
from nsabench.running.policy import make_comparisons
from nsabench.verdicts.verdict import ALL_OWN
from tests.running.test_policy import ONE as SMALL
from tests.running.test_policy import with_baselines
from tests.runs import (
    add_attempt,
    change_infos,
    from_sources,
    log_of,
    make_plan,
    observations_of,
    spoilt,
    timed,
)

ONE = replace(SMALL, ratio=lambda _: 1.5)


def judged(
    plan, beside=(), apart=(), *, death=None, ceilings=None, made=ONE, conditions=(None, None)
):
    """Return the comparisons on the device.

    beside: more baselines of the main pass. apart: isolated baselines. death: how the isolated pass
    ended. made: results of the main pass. conditions: the readings of both passes.
    """
    log, rng = log_of(plan, ceilings=ceilings), np.random.default_rng(0)
    for planned in plan.cases:
        observations = [*observations_of(planned, made, rng), *beside]
        add_attempt(log, plan, Purpose.MAIN, planned.id, observations, conditions[0])
        if apart or death:
            isolated = Purpose.ISOLATED
            add_attempt(log, plan, isolated, planned.id, apart, conditions[1], death)
    return [c for c in make_comparisons(plan, log) if c.regime is Regime.DEVICE]


def baseline(name, median_ms, **update):
    observation = timed(name, median_ms, ONE, np.random.default_rng(0))
    return spoilt(observation, update)


def test_a_winner_whose_baselines_all_come_with_it_says_so():
    plan = make_plan(ONE)
    plan = plan.model_copy(update={"sources": {plan.implementations[0].source: "a"}})
    judgements = judged(plan)
    assert {j.verdict for j in judgements} == {Verdict.FASTER}
    assert {j.reason for j in judgements} == {ALL_OWN}


def move(plan, name, source):
    """Return the plan with an implementation from another source. `mine.py` is the candidate's."""
    return change_infos(plan, lambda i: {"source": source if i.name == name else i.source})


MINE = Source("mine.py")
BESIDE_DENSE = replace(ONE, dense_ratio=lambda _: 2.0)


def test_a_process_that_times_only_alternatives_leaves_the_verdict_as_it_is():
    plan = move(with_baselines(make_plan(BESIDE_DENSE)), "sdpa_gqa", MINE)
    judgements = judged(plan, apart=[baseline("dense", 0.27)], made=BESIDE_DENSE)
    found = [j for j in judgements if j.reference is Reference.BASELINE]
    assert {(j.verdict, j.reason) for j in found} == {(Verdict.FASTER, ALL_OWN)}


@pytest.mark.parametrize(("source", "ratio"), [(MINE, 2.0), (Source("pkg"), None)])
def test_a_process_that_gave_up_says_nothing_about_alternatives_it_was_not_to_time(source, ratio):
    plan = move(with_baselines(make_plan(BESIDE_DENSE)), "dense", source)
    death = Death(status=Status.CRASHED, reason="it was killed")
    judgements = judged(plan, death=death, made=BESIDE_DENSE)
    found = [j for j in judgements if j.reference is Reference.ALTERNATIVE]
    assert {j.implementation for j in found} == {"mine", "sdpa_gqa"}
    for judgement in (j for j in found if j.implementation == "mine"):
        assert judgement.ratio == (None if ratio is None else pytest.approx(ratio, rel=0.05))


@pytest.mark.parametrize("rel_l2", [1e-5, 0.05])
def test_a_wrong_output_is_no_best_baseline_apart(rel_l2):
    """A cheap approximation passes the MAE tolerance and takes half the time."""
    plan = with_baselines(make_plan(ONE), "sloppy")
    apart = [baseline("sdpa_gqa", 0.2), baseline("sloppy", 0.1, rel_l2=rel_l2)]
    judgements = judged(plan, [baseline("sloppy", 0.1, rel_l2=0.05)], apart)
    expected = Verdict.FASTER if rel_l2 == 0.05 else Verdict.INCONCLUSIVE
    assert {j.verdict for j in judgements} == {expected}


@pytest.mark.parametrize(
    ("few", "verdict", "why"),
    [
        ("other", Verdict.FASTER, ""),
        (
            "sdpa_gqa",
            Verdict.INCONCLUSIVE,
            "sdpa_gqa could not be timed apart from the candidates: it was called only a few times",
        ),
    ],
)
def test_a_baseline_that_left_early_decides_nothing(few, verdict, why):
    """If the faster one failed, it cannot become the best baseline either."""
    plan = with_baselines(make_plan(ONE), "other")
    apart = []
    for name, median_ms in (("sdpa_gqa", 0.2), ("other", 2.0)):
        observation = baseline(name, median_ms)
        samples = Samples(round=[0, 1], time_ms=observation.samples.time_ms[:2])
        left = {"samples": samples, "bursts": Bursts(), "rel_l2": None, "mae": None}
        apart.append(observation.model_copy(update=left) if name == few else observation)
    judgements = judged(plan, [baseline("other", 2.0)], apart)
    assert {j.verdict for j in judgements} == {verdict}
    assert {j.reason for j in judgements} == {why}


OWN = "own, a baseline from its own package, takes 0.19 ms and does not decide; sdpa_gqa takes 0.2 "
OTHERS = "own could not be timed apart from the candidates: its package has"
FAILED = "sdpa_gqa could not be timed apart from the candidates: it is out of memory"


@pytest.mark.parametrize(
    ("source", "alone", "verdict", "why"),
    [
        ("mine.py", {"sdpa_gqa": 0.2}, Verdict.FASTER, OWN),
        # The candidate slowed the baseline, which takes less time without it.
        ("mine.py", {"sdpa_gqa": 0.1}, Verdict.INCONCLUSIVE, "sdpa_gqa takes 0.09"),
        ("mine.py", {"slow": 0.4}, Verdict.INCONCLUSIVE, FAILED),
        # Another baseline may be slowed by the candidate, and no process shows it.
        ("theirs", {"sdpa_gqa": 0.2}, Verdict.INCONCLUSIVE, OTHERS),
    ],
)
def test_a_best_baseline_that_no_process_has_without_candidates(source, alone, verdict, why):
    """If the candidate's source has the best baseline, the best other one decides."""
    plan = move(with_baselines(make_plan(ONE), "own", "slow"), "own", source)
    apart = [baseline(name, ms) for name, ms in alone.items()]
    if "sdpa_gqa" not in alone:
        reason = "it is out of memory"
        apart.append(Observation(implementation="sdpa_gqa", status=Status.CRASHED, reason=reason))
    judgements = judged(plan, [baseline("own", 0.19), baseline("slow", 0.4)], apart)
    for judgement in judgements:
        assert judgement.verdict is verdict
        assert judgement.against == ("sdpa_gqa" if source == "mine.py" else "own")
        assert judgement.reason.startswith(why)


@pytest.mark.parametrize("isolated_ms", [0.17, 0.22])
def test_the_smaller_of_two_ratios_counts_and_the_reason_names_it(isolated_ms):
    """Under the power cap, clocks differ so much that even a slower time apart counts."""
    beside, apart = (
        Conditions(clock_event_reasons=[POWER_CAP], sm_clock_mhz_min=mhz, sm_clock_mhz_max=mhz)
        for mhz in (1400, 2000)
    )
    isolated = [baseline("sdpa_gqa", isolated_ms)]
    judgements = judged(with_baselines(make_plan(ONE)), apart=isolated, conditions=(beside, apart))
    for judgement in judgements:
        smaller, greater = sorted((1.5, 1.5 * isolated_ms / 0.2))
        assert judgement.ratio == pytest.approx(smaller, rel=0.05)
        deciding = isolated_ms if isolated_ms < 0.2 else None
        assert judgement.isolated_ms == (deciding and pytest.approx(deciding, rel=0.05))
        numbers = re.findall(r"\d\.\d{3}", judgement.reason)
        assert [float(n) for n in numbers[-2:]] == pytest.approx([smaller, greater], rel=0.05)


def test_a_wrong_baseline_stands_for_no_other():
    plan = with_baselines(make_plan(ONE), "own", "sloppy")
    sloppy = baseline("sloppy", 0.12, mae=0.5)
    apart = [baseline("sdpa_gqa", 0.2), sloppy]
    judgements = judged(plan, [baseline("own", 0.19), sloppy], apart)
    assert {(j.verdict, j.against) for j in judgements} == {(Verdict.FASTER, "sdpa_gqa")}


def test_a_process_that_was_lost_says_why_and_accuses_no_implementation():
    plan = with_baselines(make_plan(ONE))
    death = Death(status=Status.CRASHED, reason="it was killed")
    judgements = judged(plan, death=death)
    assert {j.reason for j in judgements} == {
        "the baselines could not be timed apart from the candidates: it was killed"
    }


@pytest.mark.parametrize(
    ("update", "median_ms", "reason"),
    [
        ({"mae": 0.5}, 0.2, "mean absolute error 0.5"),
        ({"escaped_ms": 0.05}, 0.2, "in 100% of the samples work went on"),
        ({}, 0.0005, "0.0005 ms is 2.10 times faster than possible"),
    ],
)
def test_a_best_baseline_that_a_check_rejects_apart_leaves_the_question_open(
    update, median_ms, reason
):
    plan = with_baselines(make_plan(ONE))
    apart = [baseline("sdpa_gqa", median_ms, **update)]
    for judgement in judged(plan, apart=apart, ceilings=Ceilings(copy_gb_s=4250)):
        assert judgement.verdict is Verdict.INCONCLUSIVE
        assert (
            f"sdpa_gqa could not be timed apart from the candidates: {reason}" in judgement.reason
        )


def test_the_file_of_an_op_does_not_let_in_that_of_the_candidate(tmp_path):
    """Both are called mine.py. A worker without candidates loads only the op's."""
    files = [tmp_path / "a" / "mine.py", tmp_path / "b" / "mine.py"]
    for file in files:
        file.parent.mkdir()
        file.write_text(f"# {file}\n")
    kernels, op = (Source.from_file(file, file.read_bytes()) for file in files)
    digests = sources.digests(*files)
    names = {"kernels": str(files[0]), "ops": str(files[1]), "sources": digests}
    names |= {"kernels_sha256": digests[kernels], "ops_sha256": digests[op]}
    plan = from_sources(make_plan(ONE), candidates=kernels).model_copy(update=names)
    worker = WorkerClient.from_plan(plan, tmp_path, plan.clean_sources)
    assert (worker.kernels, worker.ops_file) == (None, files[1])
    assert worker.sources == plan.clean_sources and worker.is_clean
    assert op in plan.clean_sources and kernels not in plan.clean_sources
    whole = WorkerClient.from_plan(plan, tmp_path)
    assert whole.kernels == files[0] and not whole.is_clean
