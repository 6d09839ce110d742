"""A worker's description is typed, and JSON in a log."""

from __future__ import annotations

import json

from nsabench.model.description import Described


def test_what_another_version_says_stays_in_it() -> None:
    written = {
        "kind": "described",
        "software": {"torch": None, "torch.why": "ImportError", "cutlass": "4.2"},
        "device": {"type": "cuda", "nvlink_gb_s": 900.0},
        "sandbox": None,
    }
    described = Described.model_validate(written)
    assert json.loads(described.model_dump_json()) == written
    assert described.software.why("torch") == "ImportError"
    assert (described.software.triton, described.software.why("triton")) == (None, None)
    assert described.device.name is None
