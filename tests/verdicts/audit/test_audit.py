"""The audit of a table: how its columns are read, and what is found in it.

The tables in tests/data/reference led to a wrong decision in August 2025.
"""

from collections import Counter
from pathlib import Path

import pytest

from nsabench.checks import Effect
from nsabench.errors import UsageError
from nsabench.machine import datasheet
from nsabench.verdicts.audit import audit_csv

HEADER = "N,H,D,Dv,L,triton_ms,sdpa_ms,speedup,mae,status"
# Measured on an H200 (copy 4.25 TB/s).
HONEST = (
    HEADER,
    "1024,8,128,128,64,0.0177,0.0237,1.34,2e-5,FASTER",
    "1024,8,128,128,256,0.0452,0.0484,1.07,2e-5,FASTER",
    "1024,8,128,128,1024,0.1362,0.1368,1.00,2e-5,SAME",
)
LONG = (
    "implementation,N,H,D,L,time_ms,speedup",
    "sdpa,1024,8,128,64,0.0237,1",
    "fla,1024,8,128,64,0.05,0.47",
    "mine,1024,8,128,64,0.0177,1.34",
)


@pytest.fixture
def read(tmp_path):
    def run(*lines, gpu="H200", **given):
        path = tmp_path / "table.csv"
        path.write_text("\n".join(lines) + "\n")
        return audit_csv(path, gpu, **given)

    return run


@pytest.fixture
def audit(read):
    def run(*lines, **given):
        first, *findings = read(*lines, **given)
        assert (first.check, first.effect) == ("columns", Effect.NOTE)
        return [f for f in findings if f.check != "columns"]

    return run


def checks(findings):
    return {f.check for f in findings}


@pytest.mark.parametrize("table", [HONEST, LONG])
def test_an_honest_table_is_clean(audit, table):
    assert audit(*table) == []


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (  # other names and units
            (
                "rows,heads,head_dim,d_v,length,Kernel_us,ref_us,Speed-Up,mean_abs_err,Result",
                "1024,8,128,128,1024,136.2,64.0,0.47,0.151,SLOWER",
            ),
            {"parity", "roofline"},
        ),
        (
            (
                "N, H, D, Dv, sel_len, ours_us, torch_us, ratio, MAE, verdict",
                "1024,8,128,128,1024,136.2,64.0,0.47,0.151,SLOWER",
            ),
            {"parity", "roofline"},
        ),
        ((HEADER, "256,4,64,64,64,0.0202,42.0,2079,2e-5,FASTER"), {"baseline"}),
        ((HEADER, "1024,8,128,128,1024,0.1362,0.1368,1.50,2e-5,FASTER"), {"speedup"}),
        ((HEADER, "1024,8,128,128,1024,1.362e-1,1.368e-1,9.0,2e-5,FASTER"), {"speedup"}),
        ((HEADER, "1024,8,128,128,1024,1.362e-1,1.368e-1,1.00,2e-5,SAME"), set()),
        ((*HONEST, HONEST[1]), {"duplicates"}),
        ((HEADER, "1024,8,128,128,64,0.0177,0.0237,1.34,nan,FASTER"), {"parity"}),
        ((HEADER, "1024,8,128,128,64,0.0177,0.0237,1.34,inf,FASTER"), {"parity"}),
        (("L,my_kernel_ms,sdpa_ms", "64,1e-7,0.02"), {"launch"}),
        (("N,H,D,L,a_kernel_ms,ref_ms,ref_std_ms,speedup", "9,8,64,64,0.02,0.03,1,3"), {"speedup"}),
        (("L,my_kernel_ms,ref_ms,speedup_vs_ref", "64,0.02,0.03,3"), {"speedup"}),
        (("L,my_kernel_ms,ref_ms,kernel_speedup", "64,0.02,0.03,3"), {"speedup"}),
        ((*LONG[:-1], LONG[-1].replace("1.34", "5")), {"speedup"}),
        ((*LONG, LONG[1]), {"duplicates"}),
        ((*LONG[:-1], "mine,1024,8,128,64,0.0003,79"), {"launch"}),
    ],
)
def test_findings(audit, lines, found):
    assert checks(audit(*lines)) == found


def test_failed_rows_do_not_count_as_times(audit):
    findings = audit(*HONEST, "1024,8,128,128,512,ERROR,0.001,0.0,inf,FAILED")
    assert [f.check for f in findings if f.implementation == ""] == ["completeness"]


def curve(errors):
    """Return a table with these errors by length, and honest times."""
    times = {64: (0.0177, 0.0237), 256: (0.0452, 0.0484), 1024: (0.1362, 0.1368)}
    return [HEADER] + [
        f"1024,8,128,128,{n},{t},{b},{b / t:.3f},{errors[n]},SLOWER" for n, (t, b) in times.items()
    ]


KEY_0 = {64: 0.796, 256: 0.800, 1024: 0.805}


@pytest.mark.parametrize(
    ("errors", "effect", "words"),
    [
        (KEY_0, Effect.WRONG, "read key 0 only"),
        ({64: 0.5, 256: 1e-5, 1024: 0.01}, Effect.NOTE, ""),
    ],
)
def test_a_curve_of_errors_is_explained_by_a_known_mistake(audit, errors, effect, words):
    [finding] = [f for f in audit(*curve(errors)) if f.check == "explanation"]
    assert finding.effect is effect and words in finding.sentence


def test_the_errors_of_a_backward_are_not_explained_by_those_of_a_forward(audit):
    header, *rows = curve(KEY_0)
    assert checks(audit(f"{header},direction", *(f"{row},backward" for row in rows))) == {"parity"}


@pytest.mark.parametrize(
    ("text", "given", "named"),
    [
        ("", {}, "no timings"),
        ("a,b\n1,2\n", {}, "a, b"),
        ("x_ms\n", {}, "no timings"),
        (None, {}, "cannot be read"),
        ("L,fast_ms,slow_ms\n64,1,2\n", {}, "fast, slow"),
        ("L,sdpa_ms\n64,1\n", {}, "sdpa"),
        ("L,time_ms\n64,1\n", {}, "time_ms"),
        ("L,fast_ms\n64,1\n", {"candidates": ["faster"]}, "'faster'"),
        ("L,mine_ms\n64,1\n", {"baselines": ["sdpa"]}, "'sdpa'"),
    ],
)
def test_without_times_of_a_candidate_a_table_is_refused(tmp_path, text, given, named):
    path = tmp_path / "t.csv"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=named):
        audit_csv(path, **given)


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


@pytest.mark.parametrize("query", ["H100", "RTX 409O"])
def test_an_unknown_or_ambiguous_device_is_refused(query):
    with pytest.raises(UsageError) as refused:
        datasheet.find(query)
    assert refused.value.remedy
    assert datasheet.find_unique(query) is None


def test_the_sheets_are_plausible():
    for sheet in datasheet.SHEETS:
        assert 300 <= sheet.memory_gb_s <= 8000
        assert sheet.bfloat16 <= sheet.float16
        # Devices of the last years do 256 to 8,192 dense FLOP a clock and multiprocessor.
        per_clock = sheet.float16 * 1e6 / sheet.sms / sheet.sm_boost_mhz
        assert 256 <= per_clock <= 8192, sheet.name


def test_a_length_beyond_any_memory_is_audited(audit):
    rows = [f"1,8,128,128,{length},0.1,9,90,0.15,FASTER" for length in (64, 1 << 20, 1 << 24)]
    assert checks(audit(HEADER, *rows)) >= {"parity", "roofline"}


@pytest.mark.parametrize(
    ("status", "failed"),
    [("inference ok", False), ("financed", False), ("inf", True), ("OOM", True), ("IOError", True)],
)
def test_a_status_is_read_by_words(audit, status, failed):
    findings = audit(HEADER, f"1024,8,128,128,1024,0.1362,0.1368,1.00,2e-5,{status}")
    assert bool(findings) is failed


@pytest.mark.parametrize(
    ("column", "first", "second"),
    [
        ("distribution", "dense", "spread"),
        ("mode", "stream", "graph"),
        ("direction", "fwd", "bwd"),
        ("direction", "forward", "forward and backward"),
        ("batch", "1", "4"),
        ("gpu", "H200", "L4"),
        ("causal", "true", "false"),
        ("Block Size", "64", ""),
        ("seed", "0", "1"),
        ("softmax_scale", "0.125", "0.0884"),
    ],
)
def test_a_setting_tells_cases_apart(audit, column, first, second):
    rows = [f"{line},{word}" for line in HONEST[1:] for word in (first, second)]
    assert audit(f"{HEADER},{column}", *rows) == []
    findings = audit(f"{HEADER},{column}", *rows, rows[1])
    assert checks(findings) == {"duplicates"}
    assert {f.implementation for f in findings} == {"triton", "sdpa"}
    assert {f.case_id.endswith(f" {column}={second}") for f in findings} == {bool(second)}


@pytest.mark.parametrize(
    ("column", "first", "second"),
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
def test_a_result_does_not_tell_cases_apart(audit, column, first, second):
    rows = [f"{HONEST[1]},{word}" for word in (first, second)]
    assert checks(audit(f"{HEADER},{column}", *rows)) == {"duplicates"}


def test_a_baseline_of_another_distribution_is_not_the_best_of_a_case(audit):
    """`ref` takes more than `sdpa` on dense rows, but is the best baseline on spread rows."""
    header = "N,H,D,L,kernel_ms,sdpa_ms,ref_ms,distribution"
    rows = ("1024,8,128,64,0.4,2.5,0.5,spread", "1024,8,128,64,0.4,0.04,,dense")
    case = "N=1024 H=8 D=128 L=64 distribution=spread"
    slow = {
        f.implementation for f in audit(header, *rows) if (f.check, f.case_id) == ("baseline", case)
    }
    assert "sdpa" in slow and "ref" not in slow


def test_a_baseline_of_another_batch_is_not_the_best_of_a_case(audit):
    """A column that follows from batch and length does not split the length series of a batch."""
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


def test_the_user_names_candidates_baselines_and_units(audit):
    named = ("L,fast_ms,slow_ms,speedup", "64,0.02,0.03,3")
    assert checks(audit(*named, candidates=["fast"], baselines=["slow"])) == {"speedup"}
    rows = ("N,H,D,L,Triton,Torch", "1024,8,128,1024,136.2,136.8")
    with pytest.raises(UsageError):
        audit(*rows)
    assert audit(*rows, unit="us") == []
    assert checks(audit(*rows, unit="ns")) == {"launch", "roofline"}


def test_an_impossible_launch_is_found_without_a_device(audit):
    [finding] = audit("L,my_kernel_ms,sdpa_ms", "64,1e-7,0.02", gpu=None)
    assert (finding.check, finding.effect) == ("launch", Effect.IMPLAUSIBLE)


TABLES = Path(__file__).parents[2] / "data" / "reference"
GPU = "RTX 4090"


@pytest.fixture(scope="module")
def dense():
    return audit_csv(TABLES / "m4_rtx4090_dense.csv", GPU)


def of(findings, check):
    return [f for f in findings if f.check == check]


def test_four_rows_are_impossible_even_from_a_full_l2(dense):
    assert {f.case_id for f in of(dense, "roofline")} == {
        "N=1024 H=4 D=64 Dv=64 L=512",
        "N=1024 H=4 D=64 Dv=64 L=1024",
        "N=1024 H=8 D=128 Dv=128 L=512",
        "N=1024 H=8 D=128 Dv=128 L=1024",
    }
    assert {f.implementation for f in of(dense, "roofline")} == {"sdpa"}
    assert {f.effect for f in of(dense, "roofline")} == {Effect.IMPLAUSIBLE}
    assert "1008 GB/s" in of(dense, "roofline")[0].sentence


def test_all_six_baseline_ladders_are_flat_and_no_candidate_ladder_is(dense):
    flat = of(dense, "scaling")
    assert Counter(f.implementation for f in flat) == {"sdpa": 6}
    assert Counter(f.effect for f in flat) == {Effect.IMPLAUSIBLE: 2, Effect.INCONCLUSIVE: 4}


def test_every_row_beyond_64_keys_is_over_tolerance(dense):
    over = of(dense, "parity")
    assert len(over) == 20  # 26 rows less the six with L=64
    assert not any("L=64" in f.case_id.split() for f in over)
    # A table tells that two outputs differ, not which of them is wrong.
    assert {f.implementation for f in over} == {""}


def test_the_errors_are_explained_by_a_baseline_that_read_64_keys(dense):
    (finding,) = of(dense, "explanation")
    assert finding.sentence.startswith("the baseline read the first 64 keys: ")
    assert finding.effect is Effect.WRONG


def test_nothing_else_is_said_of_it(dense):
    said = {f.check for f in dense}
    assert said == {"columns", "roofline", "scaling", "parity", "explanation"}


def test_without_the_device_the_errors_are_still_explained():
    findings = audit_csv(TABLES / "m4_rtx4090_dense.csv")
    assert of(findings, "roofline") == []
    assert "read the first 64 keys" in of(findings, "explanation")[0].sentence


def test_a_table_of_branches_has_no_candidate():
    with pytest.raises(UsageError, match="which of total, cmp, sel, win is the candidate"):
        audit_csv(TABLES / "rtx4090_decode.csv", GPU)
    branches = audit_csv(TABLES / "rtx4090_decode.csv", candidates=["total"], baselines=["win"])
    assert {f.check for f in branches} == {"columns", "flat"}


def test_a_failed_row_is_no_measurement():
    findings = audit_csv(TABLES / "m4_rtx4090_varlen.csv", GPU)
    found = {(f.check, f.effect) for f in findings if f.check != "columns"}
    assert found == {("completeness", Effect.INVALID)}
    assert any("yet it states a speed-up of 0" in f.sentence for f in findings)
    assert any("none of the 1 rows was measured" in f.sentence for f in findings)


def test_times_that_do_not_follow_the_size():
    findings = audit_csv(TABLES / "rtx4090_fa2_compressed.csv", GPU)
    flat = of(findings, "flat")
    assert len(flat) == 2
    assert "masked stays between 0.55 and 0.64 ms while S grows from 128 to 512" in flat[0].sentence
