"""The tables behind a wrong decision of August 2025: the audit says what was wrong with them."""

from collections import Counter
from pathlib import Path

import pytest

from nsabench.checks import Effect
from nsabench.errors import UsageError
from nsabench.verdicts.audit import audit_csv

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
