"""What a run found wrong in libraries, as an entry that an author could use."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from nsabench.assessment.parquet import write
from nsabench.assessment.results import Results, assemble
from nsabench.assessment.tables import read_records
from nsabench.cli.packages import command
from nsabench.execution import journal
from nsabench.model.plan import Plan
from nsabench.model.record import Record
from nsabench.model.vocabulary import Role, Status
from nsabench.output import upstream
from nsabench.text import shown
from tests.runs import Made, make_run

WRONG = {
    "status": Status.WRONG,
    "reason": "MAE 0.21 against the float64 oracle, over 1e-3",
    "diagnosis": "a block that is given twice counts twice",
    "mae": 0.21,
    "rel_l2": 0.8,
    "worst_row": 3.5,
    "worst_row_at": "row 17",
    "median_ms": None,
    "package": "fla-core",
    "package_version": "0.6.0",
    "licence": "MIT",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its baseline calls a library, and is wrong from 256 keys on."""
    folder = make_run(tmp_path_factory.mktemp("upstream") / "run", Made(torch="2.13.0"))
    plan = Plan.read(folder / "plan.yaml")
    results = assemble(plan, journal.read(folder / "journal.jsonl"))
    records = [spoilt(r) for r in results.records]
    write(Results(records, results.samples, {}, [], {}), plan.run_id, folder)
    return folder


def spoilt(record: Record) -> Record:
    if record.role is Role.BASELINE and record.length >= 256:
        return replace(record, **WRONG)  # type: ignore[arg-type]
    return record


def test_an_entry_has_what_an_author_needs(run: Path) -> None:
    text = CliRunner().invoke(command, ["report", str(run)]).output
    assert text.count("## ") == 1
    assert text.startswith("## fla-core: selection_rows forward is wrong\n")
    assert "fla-core, 0.6.0, MIT, https://github.com/fla-org/flash-linear-attention" in text
    assert "NVIDIA H200, torch 2.13.0, Triton 3.6.0" in text
    assert "(unpaired: this torch belongs with triton 3.7.1)" in text
    assert "- what is wrong: a block that is given twice counts twice\n" in text
    assert "- how it was found: MAE 0.21 against the float64 oracle" in text
    assert "- where: 8 of the 16 cases that it ran here\n" in text
    assert "| N256 H4 D64 L256 fp16 | 2.10e-01 | 8.00e-01 | 3.50e+00 | row 17 |" in text
    assert text.count("| N256 ") == upstream.MOST and "and 2 more." in text
    first = next(r for r in read_records(run) if r.status is Status.WRONG and r.package)
    assert f"nsabench profile {run} {first.case_id} sdpa_gqa --script alone.py" in text


def test_its_command_can_be_copied(run: Path) -> None:
    """The names in it are those of whoever made the run."""
    hostile = "x; touch y `z` $(w)\n```\n# a heading \x1b[31m"
    named = [replace(r, implementation=hostile) for r in read_records(run)]
    text = upstream.render(named, "a run")
    [block] = re.findall(r"^````sh\n(.*)\n````$", text, re.M | re.S)
    words = shlex.split(block)
    assert words[:3] == ["nsabench", "profile", "a run"] and words[5:] == ["--script", "alone.py"]
    assert words[4] == shown(hostile) and "\n" not in block
    assert not re.search(r"^# a heading", text, re.M)


def test_what_no_known_mistake_reproduces_says_so_and_a_crash_has_its_reason(run: Path) -> None:
    records = read_records(run)
    text = upstream.render([replace(r, diagnosis="") for r in records], "r")
    assert "- what is wrong, and no known mistake reproduces it\n" in text
    crashed = [
        replace(r, status=Status.COMPILE_ERROR, diagnosis="", reason="a tuple of one pointer")
        if r.status is Status.WRONG and r.package
        else r
        for r in records
    ]
    text = upstream.render(crashed, "r")
    assert text.startswith("## fla-core: selection_rows forward is compile error\n")
    assert "- what is wrong: a tuple of one pointer\n" in text


def test_it_is_of_libraries_alone(run: Path, tmp_path: Path) -> None:
    own = [replace(r, package="") for r in read_records(run)]
    assert upstream.render(own, "r").startswith("No library was wrong")
    out = tmp_path / "upstream.md"
    assert CliRunner().invoke(command, ["report", str(run), "--out", str(out)]).exit_code == 0
    assert out.read_text().startswith("## fla-core")


def test_a_program_reads_the_same(run: Path) -> None:
    [entry] = json.loads(CliRunner().invoke(command, ["report", str(run), "--json"]).output)
    wrong = [r.case_id for r in read_records(run) if r.status is Status.WRONG and r.package]
    assert entry["cases"] == wrong and entry["why"] == WRONG["diagnosis"]
    assert (entry["package"], entry["package_version"]) == ("fla-core", "0.6.0")
