"""The small checks: ordering, timer, duplicates, monotone."""

from nsabench.checks import Effect, Limits, duplicates, monotone, ordering, timer
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


def test_measured_ceilings_are_held_against_the_data_sheet():
    sheet = Limits("data sheet of the H200", memory_gb_s=4800.0, tflop_s={"float16": 989.0})

    def effects(memory: float, rate: float) -> list[Effect]:
        measured = Limits(memory_gb_s=memory, tflop_s={"float16": rate}, sheet=sheet)
        return [f.effect for f in timer.check([], measured)]

    assert effects(4250.0, 780.0) == []
    assert effects(5500.0, 780.0) == [Effect.INCONCLUSIVE]
    assert effects(4250.0, 300.0) == [Effect.NOTE]


def test_a_record_that_is_there_twice_makes_its_case_invalid(make_row):
    (finding,) = duplicates.check([make_row(), make_row(), make_row(L=64)], Limits())
    assert (finding.effect, finding.implementation) == (Effect.INVALID, "mine")
    assert "2 times" in finding.sentence


def test_an_advantage_that_ends_is_no_threshold(make_row):
    def rows(speedups):
        lengths = (64, 128, 256)
        return [
            row
            for n, s in zip(lengths, speedups, strict=True)
            for row in (make_row("b", "baseline", s, L=n), make_row(median_ms=1.0, L=n))
        ]

    (finding,) = monotone.check(rows([0.5, 1.4, 0.8]), Limits())
    assert finding.effect is Effect.NOTE
    assert "1.40 times as fast as the baseline at L=128 but 0.80 at L=256" in finding.sentence
    assert monotone.check(rows([0.5, 1.4, 1.1]), Limits()) == []
