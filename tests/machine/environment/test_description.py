"""A worker's description is typed, and the same JSON as ever."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nsabench.model.description import Described
from tests.published import backward_run, decode_run, whole_run


def described_in(run: Path) -> dict[str, Any]:
    """What the header of a journal says. A sealed one begins with who measures."""
    with (run / "journal.jsonl").open() as lines:
        [found] = [line for line in map(json.loads, lines) if "described" in line]
    written: dict[str, Any] = found["described"]
    return written


@pytest.mark.parametrize(
    "published",
    [backward_run, decode_run, whole_run],
    ids=["backward", "decode", "whole"],
)
def test_the_journals_of_published_runs(published: Callable[[Path], Path], tmp_path: Path) -> None:
    written = described_in(published(tmp_path))
    described = Described.model_validate(written)
    assert json.loads(described.model_dump_json()) == written
    assert described.device.name == "NVIDIA H200" and described.device.compute_capability == "9.0"
    assert described.software.torch_cuda == written["software"]["torch.cuda"] == "13.0"
    assert described.software.settings["matmul_tf32"] == "False"
    assert described.software.libraries["cudnn"] == written["software"]["cudnn"]
    assert described.software.file("ptxas") == written["software"]["ptxas.file"]


def test_what_another_version_says_stays_in_it() -> None:
    written = {
        "kind": "described",
        "software": {"torch": None, "torch.why": "ImportError", "cutlass": "4.2"},
        "device": {"type": "cuda", "nvlink_gb_s": 900.0},
    }
    described = Described.model_validate(written)
    assert json.loads(described.model_dump_json()) == written
    assert described.software.why("torch") == "ImportError"
    assert (described.software.triton, described.software.why("triton")) == (None, None)
    assert described.device.name is None
