"""The doctor finds nothing on a healthy machine, and names the worst problem first on others."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from nsabench.machine.doctor import Severity, describe, describe_problems, examine
from nsabench.machine.environment.model import Environment


def text_of(environment, results):
    console = Console(file=io.StringIO(), width=100)
    problems = describe_problems(examine(environment, results=results))
    console.print(*describe(environment), *problems, sep="\n")
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_silent_on_a_healthy_machine(healthy, tmp_path):
    assert examine(healthy, results=tmp_path / "not/made/yet") == []
    text = text_of(healthy, tmp_path)
    assert "NVIDIA H200 · sm_90 · 132 SMs · 140 GiB" in text
    assert "power limit 700 W · SM clock 345 of 1980 MHz · 28 °C · 0 other processes" in text
    assert "torch 2.11.0+cu130 for CUDA 13.0 · triton 3.6.0 · numpy 2.3.5 · Python 3.11.9" in text
    assert "cudnn 9.13.0 · ptxas 12.8.93" in text
    assert text.rstrip().endswith("Nothing wrong was found.")


def test_worst_first(but, tmp_path):
    ill = but(gpu={"persistence": False, "ecc_uncorrected": 2})
    problems = examine(ill, results=tmp_path)
    assert [p.severity for p in problems] == [Severity.ERROR, Severity.WARNING]
    text = text_of(ill, tmp_path)
    assert text.index("error") < text.index("warning")
    assert "→ Run `nvidia-smi -i 0 -pm 1` as root on the host." in text


def test_markup_in_names_is_only_text(but, tmp_path):
    text = text_of(but(gpu={"name": "[red]GPU", "persistence": False}), tmp_path)
    assert text.count("[red]GPU") == 2


def test_a_machine_about_which_nothing_is_known(healthy, tmp_path):
    blank = Environment(
        collected=healthy.collected,
        complete=False,
        software=healthy.software.model_copy(
            update={"torch": None, "triton": None, "numpy": None, "distributions": {}}
        ),
    )
    codes = {p.code for p in examine(blank, results=tmp_path)}
    assert codes == {"no_gpu", "torch_missing"}
    assert "none (not seen)" in text_of(blank, tmp_path)


@pytest.mark.parametrize("place", ["here", "here/below/that"])
def test_a_place_that_cannot_be_written(healthy, tmp_path, monkeypatch, place):
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != tmp_path / "here")
    (tmp_path / "here").mkdir()
    [problem] = examine(healthy, results=tmp_path / place)
    assert problem.code == "unwritable"
