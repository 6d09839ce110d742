"""The small checks: ordering, timer."""

from nsabench.checks import Effect, Limits, ordering, timer
from nsabench.model.vocabulary import Status


def test_work_that_outlives_the_end_event_is_wrong(make_row):
    (finding,) = ordering.check([make_row(escaped_share=0.95)], Limits())
    assert finding.effect is Effect.WRONG
    assert "95%" in finding.sentence
    noise = [make_row(escaped_share=0.2), make_row(escaped_share=1.0, status=Status.CRASHED)]
    assert ordering.check(noise, Limits()) == []


def test_a_timer_that_misreads_a_known_duration_marks_the_run():
    (finding,) = timer.check([], Limits(known_duration_error=-0.031))
    assert (finding.effect, finding.case_id) == (Effect.INCONCLUSIVE, "")
    assert "-3.1%" in finding.sentence
    assert timer.check([], Limits(known_duration_error=0.019)) == []
    assert timer.check([], Limits(known_duration_error=float("nan")))
