from nsabench.checks import DeviceLimits, Effect
from nsabench.checks.baseline import check_baseline
from nsabench.model.vocabulary import Status

H200 = DeviceLimits("measured in this run", memory_gb_s=4250.0, tflop_s={"float16": 790.0})


def test_a_sleeping_wrapper_is_not_the_best_baseline(make_row):
    rows = [
        make_row("sleeping", "control", 5.3),
        make_row("expand", "baseline", 0.4727),
        make_row("gqa", "baseline", 0.1368),
        make_row("mine", median_ms=9.0),
    ]
    findings = check_baseline(rows, H200)
    assert [(f.implementation, f.effect) for f in findings] == [
        ("sleeping", Effect.NOTE),
        ("expand", Effect.NOTE),
    ]
    assert "38.7 times the 0.137 ms of gqa" in findings[0].sentence


def test_what_runs_along_for_a_control_shows_slowness_and_is_no_yardstick(make_row):
    sizes = {"N": 256, "H": 4, "D": 64, "L": 64}
    rows = [
        make_row("sleeping", "control", 9.0, **sizes),
        make_row("loop", "baseline", 42.0, **sizes, gap_hidden_share=0.0),
        make_row("wrapped", "baseline", 0.02, **sizes, alongside=True),
        make_row(median_ms=0.02, **sizes),
    ]
    noted = check_baseline(rows, H200)
    assert [(f.implementation, f.effect) for f in noted] == [
        ("sleeping", Effect.NOTE),
        ("loop", Effect.NOTE),
        ("", Effect.INCONCLUSIVE),
    ]
    assert "the best valid baseline, loop," in noted[-1].sentence


def test_an_invalid_or_wrong_baseline_is_no_yardstick(make_row):
    rows = [
        make_row("slow", "baseline", 5.0),
        make_row("wrong", "baseline", 0.01, mae=0.1),
        make_row("failed", "baseline", 0.01, status=Status.WRONG),
    ]
    assert [f.effect for f in check_baseline(rows, H200)] == [Effect.NOTE]


def test_a_case_whose_best_baseline_is_slow_decides_nothing(make_row):
    sizes = {"N": 256, "H": 4, "D": 64, "L": 64}
    loop = make_row("loop", "baseline", 42.0, **sizes, gap_hidden_share=0.0)
    (finding,) = check_baseline([loop, make_row(**sizes, median_ms=0.02)], H200)
    assert (finding.effect, finding.implementation) == (Effect.INCONCLUSIVE, "")
    assert "loop" in finding.sentence


def test_a_slow_baseline_that_only_uses_the_device_is_worth_a_note(make_row):
    """Masked attention over all keys: 250 rooflines away on short spans, the best there is."""
    (finding,) = check_baseline(
        [make_row("masked", "baseline", 42.0, N=256, H=4, D=64, L=64)], H200
    )
    assert finding.effect is Effect.NOTE


def test_a_launch_bound_baseline_is_honest(make_row):
    rows = [make_row("gqa", "baseline", 0.0137, N=256, H=4, D=64, L=64)]
    assert check_baseline(rows, H200) == []
    assert check_baseline([make_row("gqa", "baseline", 1e3)], DeviceLimits()) == []


def test_without_a_compute_rate_nobody_is_called_slow(make_row):
    loop = make_row("loop", "baseline", 42.0, N=256, H=4, D=64, L=64)
    assert check_baseline([loop], DeviceLimits(memory_gb_s=37.0)) == []
