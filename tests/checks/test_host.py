"""Which implementations are limited by their host."""

import pytest

from nsabench.checks import DeviceLimits, Effect
from nsabench.checks.timing import check_host
from nsabench.model.vocabulary import Mode


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
