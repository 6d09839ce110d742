"""The small checks: ordering, timer."""

from nsabench.checks import DeviceLimits, Effect
from nsabench.checks.timing import check_ordering, check_timer
from nsabench.model.vocabulary import Status


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
