"""Estimates of the time that a plan takes, and of cases that can never fit."""

import pytest

from nsabench.errors import EnvironmentRefused, UsageError
from nsabench.running import planner
from tests.commands import invoke
from tests.runs import Made, make_plan

HUGE = """
op: selection_rows
axes: {N: 200000, H: 8, D: 128, L: [16384, 32768]}
implementations: {only: ["sdpa_*"]}
"""


def test_memory_holds_two_sets_and_grows_with_the_case():
    plan = make_plan(Made())
    small, large = (
        next(p for p in plan.cases if p.case.shape["L"] == n and p.case.dtype == "float16")
        for n in (64, 512)
    )
    shape = small.case.shape
    one = 2 * shape["N"] * shape["D"] * (2 * shape["H"] + 2 * 64)
    assert planner.estimate_case(small, "cuda").bytes == 2 * one
    assert (
        planner.estimate_case(large, "cuda").bytes > 3 * planner.estimate_case(small, "cuda").bytes
    )


def test_the_worst_case_that_cannot_fit_is_named():
    plan = make_plan(Made())
    most = max(planner.estimate_case(p, "cuda").bytes for p in plan.cases)
    planner.refuse_unfitting(plan, most)
    planner.refuse_unfitting(plan, None)
    with pytest.raises(
        UsageError, match=r"selection_rows .* needs at least .*, but the device has"
    ):
        planner.refuse_unfitting(plan, most // 4)


def test_a_plan_of_terabytes_is_refused_and_a_small_one_has_its_cost(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    matrix = tmp_path / "m.yaml"
    matrix.write_text(HUGE)
    for command in (("plan",), ("run", "--out", "never")):
        done = invoke(command[0], matrix, "--device", "cpu", *command[1:])
        assert isinstance(done.error, UsageError) and "L32768" in str(done.error)
        assert "TB" in str(done.error) and "--where" in done.error.remedy
    assert not (tmp_path / "never").exists()
    matrix.write_text(HUGE.replace("200000", "8").replace("[16384, 32768]", "64"))
    done = invoke("plan", matrix, "--device", "cpu")
    assert done.returncode == 0 and "about" in done.stdout.splitlines()[-1]
    assert " MB  selection_rows" in done.stdout or " kB  selection_rows" in done.stdout


def test_hours_on_a_cpu_are_refused():
    """Without a GPU, dense attention takes hours, and its times decide nothing."""
    long = planner.make_plan(("nsa_attention",), "cpu", None, brief=True)
    with pytest.raises(EnvironmentRefused) as refused:
        planner.refuse_long(long)
    assert " h " in str(refused.value) and "--device cpu" in refused.value.remedy
    planner.refuse_long(planner.make_plan(("quick",), "cpu", None, brief=True))
