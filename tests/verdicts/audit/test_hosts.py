"""Tables that quote device times of calls that are bound by their host."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsabench.checks import Effect, Finding
from nsabench.verdicts.audit import audit_csv, table

SIZES = "256,4,64,64,256"  # N, H, D, Dv, L


def audit(path: Path, columns: str, *cells: str) -> list[Finding]:
    header = f"N,H,D,Dv,L,ours_us,sdpa_us{columns}"
    path.write_text("\n".join([header, *(f"{SIZES},{line}" for line in cells)]) + "\n")
    return [f for f in audit_csv(path, "H200") if f.check == "host"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "table.csv"


def test_the_rows_of_the_page_on_regimes(path: Path) -> None:
    """1.1 times as fast on the device, and 2.9 times as slow from Python."""
    (finding,) = audit(path, ",ours_host_us,sdpa_host_us", "12.0,13.2,43,15")
    assert finding.effect is Effect.INCONCLUSIVE and finding.implementation == "ours"
    assert "1.10 is the ratio of device times" in finding.sentence
    assert "43 µs of host for 12 µs of work" in finding.sentence
    assert "there it is 0.35 times as fast as sdpa" in finding.sentence


@pytest.mark.parametrize(
    ("columns", "cells"),
    [
        ("", "12.0,13.2"),  # nothing is said of a host
        (",ours_host_us,sdpa_host_us", "12.0,13.2,9,15"),  # the device is what is awaited
        (",ours_host_us,sdpa_host_us", "13.2,12.0,43,15"),  # it claims no speed-up
        (",ours_host_us,sdpa_host_us,mode", "12.0,13.2,43,15,graph"),  # replays have no such host
        (",ours_host_us,sdpa_host_us", "12.0,13.2,,15"),
        (",launches", "12.0,13.2,1"),
    ],
)
def test_what_is_not_accused(path: Path, columns: str, cells: str) -> None:
    assert audit(path, columns, cells) == []


def test_one_that_is_faster_from_there_too_is_only_noted(path: Path) -> None:
    (finding,) = audit(path, ",ours_host_us,sdpa_host_us", "12.0,13.2,43,60")
    assert finding.effect is Effect.NOTE and "1.40 times as fast" in finding.sentence


@pytest.mark.parametrize("columns", [",host_us", ",ours_cpu_time_us", ",ours_host_ms"])
def test_a_host_time_without_that_of_the_baseline(path: Path, columns: str) -> None:
    host = "0.043" if columns.endswith("ms") else "43"
    (finding,) = audit(path, columns, f"12.0,13.2,{host}")
    assert finding.effect is Effect.INCONCLUSIVE
    assert "what its baseline takes from there is not said" in finding.sentence


@pytest.mark.parametrize("column", ["launches", "ours_launches", "ours_kernel_launches"])
def test_launches_bound_a_host_as_well(path: Path, column: str) -> None:
    (finding,) = audit(path, f",{column}", "12.0,13.2,13")
    assert "16.9 µs of host for 12 µs of work" in finding.sentence


def test_a_host_time_is_no_time_of_a_baseline_and_makes_no_case(path: Path) -> None:
    audit(path, ",ours_host_us,sdpa_host_us,launches", "12.0,13.2,43,15,1", "12.1,13.3,44,16,2")
    read = table.read(path)
    assert read.baselines == ["sdpa_us"] and read.candidate == "ours_us"
    assert {row.implementation for row in read.records()} == {"ours", "sdpa"}
    assert len({row.case_id for row in read.records()}) == 1
