from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nsabench.evidence.manifest import seal
from tests.runs import SIGNER, Made, make_run

MakeSigned = Callable[..., Path]


@pytest.fixture
def signed(tmp_path: Path) -> MakeSigned:
    """Make a signed run in a folder of its own."""
    signer = SIGNER

    def make(number: int = 0, **how: object) -> Path:
        made = Made(run_id=f"20260101T000000Z-{number:06x}", seed=number, **how)  # type: ignore[arg-type]
        folder = make_run(tmp_path / f"run{number}", made)
        seal(folder, signer)
        return folder

    return make
