import pytest

from nsabench.checks import Effect
from nsabench.errors import UsageError
from nsabench.machine import datasheet
from nsabench.verdicts.audit import audit_csv

HEADER = "N,H,D,Dv,L,triton_ms,sdpa_ms,speedup,mae,status"


@pytest.fixture
def audit(tmp_path):
    def run(*lines: str, gpu: str | None = "H200", **given):
        path = tmp_path / "table.csv"
        path.write_text("\n".join(lines) + "\n")
        first, *findings = audit_csv(path, gpu, **given)
        assert (first.check, first.effect) == ("columns", Effect.NOTE)
        return [f for f in findings if f.check != "columns"]

    return run


# Measured on an H200 (copy 4.25 TB/s).
HONEST = (
    HEADER,
    "1024,8,128,128,64,0.0177,0.0237,1.34,2e-5,FASTER",
    "1024,8,128,128,256,0.0452,0.0484,1.07,2e-5,FASTER",
    "1024,8,128,128,1024,0.1362,0.1368,1.00,2e-5,SAME",
)


def test_an_honest_table_is_clean(audit):
    assert audit(*HONEST) == []


@pytest.mark.parametrize(
    "header",
    [
        "rows,heads,head_dim,d_v,length,Kernel_us,ref_us,Speed-Up,mean_abs_err,Result",
        "N, H, D, Dv, sel_len, ours_us, torch_us, ratio, MAE, verdict",
    ],
)
def test_columns_are_found_under_other_names_and_units(audit, header):
    findings = audit(header, "1024,8,128,128,1024,136.2,64.0,0.47,0.151,SLOWER")
    assert [f.check for f in findings] == ["parity", "roofline"]


def test_speedups_that_follow_from_a_slow_baseline(audit):
    findings = audit(HEADER, "256,4,64,64,64,0.0202,42.0,2079,2e-5,FASTER")
    assert [(f.check, f.effect) for f in findings] == [("baseline", Effect.INCONCLUSIVE)]


def test_a_speedup_that_is_not_the_ratio_of_the_times(audit):
    findings = audit(HEADER, "1024,8,128,128,1024,0.1362,0.1368,1.50,2e-5,FASTER")
    assert [(f.check, f.effect) for f in findings] == [("speedup", Effect.WRONG)]
    assert "is 1.00" in findings[0].sentence


def test_duplicated_rows(audit):
    findings = audit(*HONEST, HONEST[1])
    assert {f.check for f in findings} == {"duplicates"}
    assert {f.implementation for f in findings} == {"triton", "sdpa"}


@pytest.mark.parametrize("cell", ["nan", "inf"])
def test_an_error_that_is_no_number_is_over_tolerance(audit, cell):
    findings = audit(HEADER, f"1024,8,128,128,64,0.0177,0.0237,1.34,{cell},FASTER")
    assert [f.check for f in findings] == ["parity"]


def test_failed_rows_do_not_count_as_times(audit):
    findings = audit(*HONEST, "1024,8,128,128,512,ERROR,0.001,0.0,inf,FAILED")
    assert [f.check for f in findings if f.implementation == ""] == ["completeness"]


def curve(mistake):
    """A table whose errors over L are those of a given mistake, with honest times."""
    times = {64: (0.0177, 0.0237), 256: (0.0452, 0.0484), 1024: (0.1362, 0.1368)}
    return [HEADER] + [
        f"1024,8,128,128,{n},{t},{b},{b / t:.3f},{mistake[n]},SLOWER" for n, (t, b) in times.items()
    ]


def test_other_mistakes_are_told_apart(audit):
    key_0 = {64: 0.796, 256: 0.800, 1024: 0.805}
    [finding] = [f for f in audit(*curve(key_0)) if f.check == "explanation"]
    assert finding.sentence.startswith("one side read key 0 only: ")


def test_the_errors_of_a_backward_are_not_explained_by_those_of_a_forward(audit):
    key_0 = {64: 0.796, 256: 0.800, 1024: 0.805}
    header, *rows = curve(key_0)
    table = [f"{header},direction", *(f"{row},backward" for row in rows)]
    assert {f.check for f in audit(*table)} == {"parity"}


def test_errors_that_nothing_explains_are_not_explained(audit):
    odd = {64: 0.5, 256: 1e-5, 1024: 0.01}
    [finding] = [f for f in audit(*curve(odd)) if f.check == "explanation"]
    assert finding.effect is Effect.NOTE
    assert "no simulated mistake" in finding.sentence


@pytest.mark.parametrize(
    ("text", "says"),
    [("", "missing"), ("a,b\n1,2\n", "its columns are a, b"), ("x_ms\n", "no timings")],
)
def test_what_is_no_table_is_refused(tmp_path, text, says):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(UsageError, match=says):
        audit_csv(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        audit_csv(tmp_path / "none.csv")


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("RTX 4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("4090", "RTX 4090"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("b200", "B200"),
    ],
)
def test_devices_are_found_under_the_names_they_are_given(query, name):
    assert datasheet.find(query).name == name


@pytest.mark.parametrize(("query", "hint"), [("H100", "say which"), ("RTX 409O", "did you mean")])
def test_an_unknown_or_ambiguous_device_is_refused(query, hint):
    with pytest.raises(UsageError) as refused:
        datasheet.find(query)
    assert hint in refused.value.remedy
    assert datasheet.find_unique(query) is None


def test_the_sheets_are_plausible():
    for sheet in datasheet.SHEETS:
        assert 300 <= sheet.memory_gb_s <= 8000
        assert sheet.bfloat16 <= sheet.float16
        # A dense tensor rate is 256 to 8192 FLOP a clock and SM on every device of the last years.
        per_clock = sheet.float16 * 1e6 / sheet.sms / sheet.sm_boost_mhz
        assert 256 <= per_clock <= 8192, sheet.name


def test_a_row_without_sizes_is_named(audit):
    findings = audit(*HONEST, "1024,8,128,128,many,0.0452,0.0484,1.07,2e-5,FASTER")
    assert [(f.check, f.effect) for f in findings] == [("completeness", Effect.INCONCLUSIVE)]
    assert "line 5 gives no sizes of a case" in findings[0].sentence
    assert "L is many" in findings[0].sentence


def test_a_length_beyond_any_memory_is_audited(audit):
    rows = [f"1,8,128,128,{length},0.1,9,90,0.15,FASTER" for length in (64, 1 << 20, 1 << 24)]
    assert {f.check for f in audit(HEADER, *rows)} >= {"parity", "roofline"}


def test_a_speedup_of_times_with_exponents(audit):
    findings = audit(HEADER, "1024,8,128,128,1024,1.362e-1,1.368e-1,9.0,2e-5,FASTER")
    assert "speedup" in {f.check for f in findings}
    assert audit(HEADER, "1024,8,128,128,1024,1.362e-1,1.368e-1,1.00,2e-5,SAME") == []


@pytest.mark.parametrize(
    ("status", "failed"),
    [("inference ok", False), ("financed", False), ("inf", True), ("OOM", True), ("IOError", True)],
)
def test_a_status_is_read_by_words(audit, status, failed):
    findings = audit(HEADER, f"1024,8,128,128,1024,0.1362,0.1368,1.00,2e-5,{status}")
    assert bool(findings) is failed


SETTINGS = [
    ("distribution", "dense", "spread"),
    ("streams", "1", "4"),
    ("mode", "stream", "graph"),
    ("mode", "dense", "varlen"),  # as some call a distribution
    ("direction", "fwd", "bwd"),
    ("direction", "forward", "forward and backward"),
]


def of_a_row_given_twice(audit, column, one, other):
    """The findings where rows differ in this column alone, and one of them stands twice."""
    rows = [f"{line},{word}" for line in HONEST[1:] for word in (one, other)]
    assert audit(f"{HEADER},{column}", *rows) == []
    findings = audit(f"{HEADER},{column}", *rows, rows[1])
    assert {f.check for f in findings} == {"duplicates"}
    return findings


@pytest.mark.parametrize(("column", "one", "other"), SETTINGS)
def test_what_differs_in_more_than_its_sizes_is_no_duplicate(audit, column, one, other):
    findings = of_a_row_given_twice(audit, column, one, other)
    assert {f.implementation for f in findings} == {"triton", "sdpa"}


def test_a_baseline_of_another_distribution_is_not_the_best_one_of_a_case(audit):
    """Its 0.5 ms are far above what the case takes, and the best there is for it."""
    header = "N,H,D,L,kernel_ms,sdpa_ms,ref_ms,distribution"
    rows = ("1024,8,128,64,0.4,2.5,0.5,spread", "1024,8,128,64,0.4,0.04,,dense")
    found = {(f.check, f.case_id, f.implementation) for f in audit(header, *rows)}
    spread = {f for f in found if "spread" in f[1]}
    assert ("baseline", "N=1024 H=8 D=128 L=64 distribution=spread", "sdpa") in spread
    assert ("baseline", "N=1024 H=8 D=128 L=64 distribution=spread", "ref") not in spread


def test_a_case_is_named_with_what_tells_it_from_others(audit):
    header = f"{HEADER},dtype,distribution,streams"
    rows = [f"{HONEST[1]},bf16,{word}".replace("2e-5", "0.5") for word in ("spread,4", "dense,1")]
    assert {f.case_id for f in audit(header, *rows) if f.check == "parity"} == {
        "N=1024 H=8 D=128 Dv=128 L=64 bf16 distribution=spread",
        "N=1024 H=8 D=128 Dv=128 L=64 bf16 distribution=dense",
    }


OTHER_SETTINGS = [
    ("batch", "1", "4"),
    ("gpu", "H200", "L4"),
    ("causal", "true", "false"),
    ("window", "512", "1024"),
    ("Block Size", "64", ""),
    ("seed", "0", "1"),
    ("softmax_scale", "0.125", "0.0884"),
]


@pytest.mark.parametrize(("column", "one", "other"), OTHER_SETTINGS)
def test_a_column_that_nobody_has_heard_of_tells_cases_apart(audit, column, one, other):
    findings = of_a_row_given_twice(audit, column, one, other)
    assert {f.case_id.endswith(f" {column}={other}") for f in findings} == {bool(other)}


@pytest.mark.parametrize(
    ("column", "one", "other"),
    [
        ("triton_tflops", "310", "305"),
        ("max_abs_err", "1e-3", "2e-3"),
        ("p99", "1", "2"),
        ("joules", "1.25", "1.31"),
        ("unheard_of", "1.25", "1.31"),
        ("run", "1", "2"),
        ("note", "", "once more"),
    ],
)
def test_a_case_that_was_measured_twice_is_there_twice_whatever_came_out(audit, column, one, other):
    rows = [f"{HONEST[1]},{word}" for word in (one, other)]
    assert {f.check for f in audit(f"{HEADER},{column}", *rows)} == {"duplicates"}


def test_a_baseline_of_another_batch_is_not_the_best_one_of_a_case(audit):
    """A column that follows from batch and length does not cut the ladder of a batch to pieces."""
    header = "N,H,D,L,kernel_ms,sdpa_ms,tokens,batch"
    lines = [
        f"1024,8,128,{n},{b * n * 2e-4},{b * n * 1.5e-4},{b * n},{b}"
        for n in (64, 256, 1024)
        for b in (1, 4)
    ]
    assert audit(header, *lines) == []
    findings = audit(header, *lines, "1024,8,128,8192,1.64,0.16,8192,1")
    assert {(f.check, f.implementation, f.case_id) for f in findings} == {
        ("roofline", "sdpa", "N=1024 H=8 D=128 L=8192 batch=1"),
        ("scaling", "sdpa", "N=1024 H=8 D=128 L=8192 batch=1"),
    }


def columns_of(path, text, **given):
    """What was taken for what, and what was not checked."""
    path.write_text(text)
    return [f.sentence for f in audit_csv(path, **given) if f.check == "columns"]


def test_it_says_which_column_it_took_for_what(tmp_path):
    text = "L,my_kernel_ms,ref_ms,ref_std_ms,sdpa_p20_ms,note\n64,0.1,0.2,0.01,0.19,x\n"
    taken, unchecked = columns_of(tmp_path / "t.csv", text)
    assert "my_kernel_ms is a candidate; ref_ms is a baseline; sizes: L" in taken
    assert "not used: ref_std_ms, sdpa_p20_ms, note" in taken
    assert unchecked == (
        "not checked: errors, since no column has them; limits and growth, since no line gives all "
        "sizes (N, H, D)"
    )


@pytest.mark.parametrize("gpu", [None, "H200"])
def test_a_time_that_no_launch_can_take(audit, gpu):
    """Whoever wrote seconds into a column of milliseconds learns it without naming a device."""
    findings = audit("L,my_kernel_ms,sdpa_ms", "64,1e-7,0.02", gpu=gpu)
    assert [(f.check, f.effect) for f in findings] == [("launch", Effect.IMPLAUSIBLE)]
    assert "1e-7 in my_kernel_ms is 0.0001 µs" in findings[0].sentence


def test_a_speedup_that_its_times_contradict_whatever_the_kernel_is_called(audit):
    rows = ("N,H,D,L,my_kernel_ms,ref_ms,ref_std_ms,speedup", "1024,8,128,64,0.02,0.03,0.001,3")
    assert [f.check for f in audit(*rows)] == ["speedup"]
    named = ("L,fast_ms,slow_ms,speedup", "64,0.02,0.03,3")
    assert [f.check for f in audit(*named, candidates=["fast"], baselines=["slow"])] == ["speedup"]


@pytest.mark.parametrize("column", ["speedup_vs_ref", "kernel_speedup", "Speed-Up"])
def test_a_speedup_under_another_name(audit, column):
    rows = (f"L,my_kernel_ms,ref_ms,{column}", "64,0.02,0.03,3")
    assert [f.check for f in audit(*rows)] == ["speedup"]


LONG = (
    "implementation,N,H,D,L,time_ms,speedup",
    "sdpa,1024,8,128,64,0.0237,1",
    "fla,1024,8,128,64,0.05,0.47",
    "mine,1024,8,128,64,0.0177,1.34",
)


def test_a_row_for_each_implementation(audit):
    assert audit(*LONG) == []
    (wrong,) = audit(*LONG[:-1], LONG[-1].replace("1.34", "5"))
    assert (wrong.check, wrong.implementation) == ("speedup", "mine")
    assert {f.check for f in audit(*LONG, LONG[1])} == {"duplicates"}
    (short,) = audit(*LONG[:-1], "mine,1024,8,128,64,0.0003,79")
    assert (short.check, short.implementation) == ("launch", "mine")


def test_a_time_without_its_unit(audit):
    rows = ("N,H,D,L,Triton,Torch", "1024,8,128,1024,136.2,136.8")
    with pytest.raises(UsageError, match="holds no timings"):
        audit(*rows)
    assert audit(*rows, unit="us") == []
    assert {f.check for f in audit(*rows, unit="ns")} == {"launch", "roofline"}


@pytest.mark.parametrize(
    ("text", "given", "sentence"),
    [
        ("L,fast_ms,slow_ms\n64,1,2\n", {}, "which of fast, slow is the candidate"),
        ("L,sdpa_ms\n64,1\n", {}, "which of sdpa is the candidate"),
        ("L,time_ms\n64,1\n", {}, "which of time_ms is the candidate"),
        ("L,fast_ms\n64,1\n", {"candidates": ["faster"]}, "has no times of 'faster'"),
        ("L,mine_ms\n64,1\n", {"baselines": ["sdpa"]}, "has no times of 'sdpa'"),
    ],
)
def test_without_a_candidate_nothing_is_audited(tmp_path, text, given, sentence):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(UsageError, match=sentence):
        audit_csv(path, **given)
