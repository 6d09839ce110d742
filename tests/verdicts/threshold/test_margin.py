"""With another margin, ratios near it are measured twice, or the decision has a note."""

import json
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from nsabench.cli.threshold import command
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import Purpose
from nsabench.running.folder import RunFolder
from nsabench.running.log import LogFile
from nsabench.running.policy import next_jobs
from nsabench.verdicts.results import assemble
from nsabench.verdicts.threshold import decide_run
from nsabench.verdicts.thresholds_yaml import as_text
from tests.runs import SIGNER, Made, add_attempt, make_run, session_of, timed


def at_the_top(ratio):
    return lambda length: 0.5 if length < 256 else ratio


NARROW = Made(ratio=at_the_top(1.055), noise=0.002)  # passes 1.05 by less than 1 %


def decided(folder, *options):
    done = CliRunner().invoke(command, [str(folder), "--json", *options])
    assert done.exit_code == 0, done.output
    [decision] = json.loads(done.stdout)["decisions"]
    assert isinstance(decision, dict)
    return decision


def results_of(folder):
    [part] = RunFolder(folder).parts()
    return assemble(part.plan.run_id, [part])


def decision_of(folder, margin):
    plan = Plan.read(folder / "plan.json")
    [decision] = decide_run(results_of(folder).records, plan, margin)
    return decision


def test_a_threshold_that_one_process_alone_saw_says_so(tmp_path):
    folder = make_run(tmp_path / "run", NARROW)
    document = decided(folder, "--margin", "1.05")
    assert document["min_L"] == 256
    [note] = document["notes"]
    assert "it rests on one process: 8 of the cases that pass do so by less than 1%" in note
    assert "only ratios near 1.2" in note
    assert "`nsabench all --margin 1.05`" in note
    decision = decision_of(folder, 1.05)
    assert note in as_text([decision])


@pytest.mark.parametrize(("ratio", "margin"), [(1.09, 1.05), (1.205, 1.2), (1.055, 1.2)])
def test_what_is_clear_or_was_looked_at_or_decides_nothing_is_not_flagged(tmp_path, ratio, margin):
    folder = make_run(tmp_path / "run", replace(NARROW, ratio=at_the_top(ratio)))
    document = decided(folder, "--margin", str(margin))
    assert document["notes"] == []


def test_a_run_for_a_margin_looks_twice_at_what_lies_near_it(tmp_path):
    usual = make_run(tmp_path / "usual", NARROW)
    asked = make_run(tmp_path / "asked", replace(NARROW, margin=1.05))
    looked_at = {}
    for folder in (usual, asked):
        [part] = RunFolder(folder).parts()
        jobs = next_jobs(part.plan, part.log)
        looked_at[folder] = [job for job in jobs if job.purpose is Purpose.CONFIRMATION]
    assert looked_at[usual] == []
    assert len(looked_at[asked]) == 8
    assert {job.implementations for job in looked_at[asked]} == {("sdpa_gqa", "mine")}
    document = decided(asked)
    assert (document["margin"], document["min_L"], document["notes"]) == (1.05, 256, [])


def test_what_a_second_process_saw_below_the_margin_does_not_pass_it(tmp_path):
    folder = make_run(tmp_path / "run", replace(NARROW, margin=1.05))
    rng = np.random.default_rng(1)
    plan = Plan.read(folder / "plan.json")
    with closing(LogFile(folder / "log.jsonl")) as log:
        log.sign_as(SIGNER)
        log.append(session_of(plan, log.log.sessions[0].described, folder))
        for planned in plan.cases:
            base = 0.2 * planned.case.shape["L"] / 64
            outcomes = [
                timed("sdpa_gqa", base, NARROW, rng),
                timed("mine", base / 1.04, NARROW, rng),
            ]
            add_attempt(log, plan, Purpose.CONFIRMATION, planned.id, outcomes)
    decision = decision_of(folder, 1.05)
    assert decision.min_length is None
    assert decision.decided_by is not None and decision.decided_by.lo is not None
    assert decision.decided_by.lo < 1.045


def test_each_run_is_decided_for_its_own_margin(tmp_path):
    folders = [
        str(make_run(tmp_path / run, replace(NARROW, run_id=run, margin=margin)))
        for run, margin in (("one", 1.05), ("other", 1.2))
    ]
    done = CliRunner().invoke(command, [*folders, "--json"])
    decisions = json.loads(done.stdout)["decisions"]
    assert [(d["run_id"], d["margin"]) for d in decisions] == [("one", 1.05), ("other", 1.2)]
