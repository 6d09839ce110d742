"""A worker's description is typed, and the same JSON as ever."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nsabench.model.description import Described

PUBLISHED = sorted((Path(__file__).parents[3] / "docs" / "results").glob("h200-*"))


@pytest.mark.parametrize("run", PUBLISHED, ids=lambda run: run.name)
def test_the_journals_of_published_runs(run: Path) -> None:
    with (run / "journal.jsonl").open() as lines:
        written = json.loads(next(lines))["described"]
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
