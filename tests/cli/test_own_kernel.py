"""A user's kernels in a run on the CPU: what the run prints and writes about right and failed
ones."""

import json

import yaml

from tests.commands import invoke
from tests.shared_runs import FAILING

NAMES = ("right", "wrong", "scaled", "raises", "interpreted")


def test_the_log_of_a_case_and_the_page_hold_the_whole_traceback(failed_run):
    page = (failed_run / "report.html").read_text()
    [log] = [path.read_text() for path in (failed_run / "logs").iterdir()]
    raises = log.partition("=== raises\n")[2].partition("=== ")[0]
    assert raises.startswith("Traceback (most recent call last):\n")
    for frame in ("in raises", "in helper", "in inner"):
        assert frame in raises and frame in page
    assert "nsabench/running" not in raises
    interpreted = log.partition("=== interpreted\n")[2].partition("=== ")[0]
    assert "in kernel" in interpreted and "in interpreted" in interpreted


def test_every_own_candidate_is_decided_before_those_that_ship(failed_run):
    decisions = yaml.safe_load((failed_run / "thresholds.yaml").read_text())["decisions"]
    for regime in ("device", "queue"):
        candidates = [d["candidate"] for d in decisions if d["regime"] == regime]
        assert set(candidates[: len(NAMES)]) == set(NAMES)
        assert candidates[len(NAMES) :] == ["rows_group"]
    assert {d["answer"] for d in decisions} == {"not decided"}


def test_only_a_timed_kernel_is_called_undecided(failed_run):
    lines = (failed_run.parent / "printed").read_text().splitlines()
    undecided = [line.partition(":")[0] for line in lines if "not decided" in line]
    assert undecided == ["right"]


def test_a_reason_names_the_line_of_the_kernel(failed_run):
    line = next(n for n, text in enumerate(FAILING.splitlines(), 1) if "2 * N" in text)
    assert f"(mine.py:{line})" in (failed_run.parent / "printed").read_text()


def test_the_result_of_a_run_is_json(failed_run):
    done = invoke("all", "--resume", failed_run, "--json")
    result = json.loads(done.stdout)
    assert result["exit_code"] == 1
    assert result["run_id"] == json.loads((failed_run / "plan.json").read_text())["run_id"]
    found = {c["implementation"]: (c["status"], c["length"]) for c in result["candidates"]}
    assert found["right"] == ("ok", 16) and found["wrong"][0] == "wrong"
    assert {d["candidate"] for d in result["thresholds"]["decisions"]} >= set(NAMES)
    assert result["controls"]["caught"] > 0 and result["signature"]
