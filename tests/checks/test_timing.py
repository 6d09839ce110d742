"""Checks of the timer, the order of work, the clocks of the device, and the host."""

import pytest

from nsabench.checks import DeviceLimits, Effect
from nsabench.checks.timing import (
    check_clocks,
    check_host,
    check_ordering,
    check_timer,
    clock_spread,
)
from nsabench.model.measurement import Conditions
from nsabench.model.vocabulary import Mode, Status


def test_throttling_makes_the_case_inconclusive(make_row):
    conditions = Conditions(
        clock_event_reasons=["gpu_idle", "hw_thermal_slowdown"],
        sm_clock_mhz_min=900,
        sm_clock_mhz_max=1980,
    )
    rows = [make_row(conditions=conditions), make_row("b", "baseline", conditions=conditions)]
    (finding,) = check_clocks(rows, DeviceLimits())
    assert (finding.effect, finding.implementation) == (Effect.INCONCLUSIVE, "")
    assert "hw_thermal_slowdown (SM clock 900 to 1980 MHz)" in finding.sentence
    assert "gpu_idle" not in finding.sentence


def capped(low, high, *more):
    return Conditions(
        clock_event_reasons=["sw_power_cap", *more], sm_clock_mhz_min=low, sm_clock_mhz_max=high
    )


def test_the_power_cap_widens_intervals_and_ends_nothing(make_row):
    """Dense attention may run at the power cap all the time."""
    conditions = capped(1584, 1980)
    rows = [make_row(conditions=conditions), make_row("b", "baseline", conditions=conditions)]
    (finding,) = check_clocks(rows, DeviceLimits())
    assert (finding.effect, finding.implementation) == (Effect.NOTE, "")
    assert "between 1584 and 1980 MHz" in finding.sentence and "factor 1.250" in finding.sentence
    assert clock_spread([conditions]) == 1.25
    assert clock_spread([conditions, Conditions()]) == 1.25
    free = Conditions(sm_clock_mhz_min=1500, sm_clock_mhz_max=2000)
    assert clock_spread([free]) == 1.0
    assert clock_spread([free, capped(1600, 1900)]) == pytest.approx(2000 / 1500)


@pytest.mark.parametrize(
    "conditions",
    [
        capped(1584, 1980, "hw_thermal_slowdown"),
        capped(None, None),
        capped(None, 1980),
        capped(1980, 990),  # a worker may claim this, to shrink the interval
        capped(-5, 1980),
        capped(0, 0),
    ],
)
def test_a_power_cap_of_unknown_reach_or_beside_heat_does(make_row, conditions):
    [finding, *_] = check_clocks([make_row(conditions=conditions)], DeviceLimits())
    assert finding.effect is Effect.INCONCLUSIVE
    assert "sw_power_cap" in finding.sentence


@pytest.mark.parametrize(
    ("conditions", "effects"),
    [
        (Conditions(clock_event_reasons=["gpu_idle", "applications_clocks_setting"]), []),
        (Conditions(competing_processes=1), [Effect.INCONCLUSIVE]),
    ],
)
def test_idle_clocks_are_fine_and_other_processes_are_not(make_row, conditions, effects):
    findings = check_clocks([make_row(conditions=conditions)], DeviceLimits())
    assert [f.effect for f in findings] == effects


def test_work_that_outlives_the_end_event_is_wrong(make_row):
    (finding,) = check_ordering([make_row(escaped_share=0.95)], DeviceLimits())
    assert finding.effect is Effect.WRONG
    assert "95%" in finding.sentence
    noise = [make_row(escaped_share=0.2), make_row(escaped_share=1.0, status=Status.CRASHED)]
    assert check_ordering(noise, DeviceLimits()) == []


def test_a_timer_that_misreads_a_known_duration_marks_the_run():
    (finding,) = check_timer([], DeviceLimits(known_duration_error=-0.031))
    assert (finding.effect, finding.case_id) == (Effect.INCONCLUSIVE, "")
    assert "-3.1%" in finding.sentence
    assert check_timer([], DeviceLimits(known_duration_error=0.019)) == []
    assert check_timer([], DeviceLimits(known_duration_error=float("nan")))


@pytest.mark.parametrize(("mode", "what"), [(Mode.STREAM, "Python"), (Mode.GRAPH, "replaying")])
def test_a_candidate_that_is_bound_by_its_host_says_so(make_row, mode, what):
    rows = [
        make_row("mine", median_ms=0.014, host_us=131.0, queued_ms=0.0528, mode=mode),
        make_row(
            "counted", median_ms=0.014, host_us=131.0, queued_ms=0.0528, launches=13, mode=mode
        ),
        make_row("near", median_ms=0.014, host_us=131.0, queued_ms=0.0174, mode=mode),
        make_row("b", "baseline", median_ms=0.014, host_us=131.0, queued_ms=0.06, mode=mode),
        make_row("on_a_cpu", median_ms=0.014, queued_ms=0.06, mode=mode),
        make_row("older", median_ms=0.014, host_us=131.0, mode=mode),
    ]
    finding, counted = check_host(rows, DeviceLimits())
    assert counted.sentence == f"{finding.sentence}, in 13 launches"
    assert (finding.effect, finding.implementation) == (Effect.NOTE, "mine")
    assert finding.sentence == f"bound by its host: 53 µs of {what} for 14 µs of work"
