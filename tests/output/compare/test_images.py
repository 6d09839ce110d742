"""The version matrix of `nsabench images matrix` is a comparison like any other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from nsabench.images.launch import ComboResult
from nsabench.output.compare import compare_common
from tests.output.compare.test_comparison import NEWER, STEADY
from tests.runs import make_run


def test_only_finished_combos_are_compared(tmp_path: Path) -> None:
    newer = replace(NEWER, implementations=("mine", "needs_a_newer_torch"))
    observations = [
        ComboResult("broken", tmp_path / "broken", 137),
        ComboResult("torch2.11.0", make_run(tmp_path / "torch2.11.0", STEADY), 0),
        ComboResult("torch2.13.0", make_run(tmp_path / "torch2.13.0", newer), 1),
    ]
    finished = [each.folder for each in observations if each.finished]
    comparison = compare_common(finished)
    assert comparison is not None
    assert [side.name for side in comparison.sides] == ["torch2.11.0", "torch2.13.0"]
    assert comparison.disagreements == (
        "needs_a_newer_torch is measured only in torch2.13.0 (16 cases)",
    )
    assert compare_common(finished[:1]) is None


def test_what_lies_there_from_before_is_not_compared(tmp_path: Path) -> None:
    """2: the folder was not empty."""
    assert not ComboResult("torch2.11.0", make_run(tmp_path / "torch2.11.0", STEADY), 2).finished
