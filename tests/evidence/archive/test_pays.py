"""From which length on ops pay, over the runs of an archive."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsabench.evidence.archive import Archive
from nsabench.evidence.archive.query import query
from nsabench.evidence.manifest import seal
from tests.runs import SIGNER, Made, make_run

ASKED = "SELECT run_id, gpu, torch, direction, regime, answer, pays_from, alternatives FROM pays"


def made(number: int, torch: str, ratio: float) -> Made:
    return Made(
        run_id=f"20260101T000000Z-{number:06x}",
        torch=torch,
        ratio=lambda _: 1.5,
        queue_ratio=lambda _: 1.0,
        dense_ratio=lambda length: ratio if length < 256 else 1.6,
    )


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    """Of two runs with alternatives, the newer of which pays from a smaller length on."""
    archive = Archive(str(tmp_path / "archive"), create=True)
    signer = SIGNER
    for number, (torch, ratio) in enumerate((("2.11.0", 0.9), ("2.13.0", 1.2))):
        folder = make_run(tmp_path / f"run{number}", made(number, torch, ratio))
        seal(folder, signer)
        archive.add(folder)
    return archive


def test_it_can_be_asked_by_run_gpu_and_versions(archive: Archive) -> None:
    rows = query(archive, f"{ASKED} ORDER BY run_id, regime").to_pylist()
    assert [(r["torch"], r["regime"], r["answer"], r["pays_from"]) for r in rows] == [
        ("2.11.0", "device", "from", 256),
        ("2.11.0", "queue", "at no length", None),
        ("2.13.0", "device", "from", 64),
        ("2.13.0", "queue", "at no length", None),
    ]
    assert {(r["gpu"], r["alternatives"], r["direction"]) for r in rows} == {
        ("NVIDIA H200", "dense", "forward")
    }
    [joined] = query(
        archive,
        "SELECT max(pays_from) AS n FROM pays JOIN records USING (run_id, op) WHERE role = "
        "'candidate' AND regime = 'device'",
    ).to_pylist()
    assert joined["n"] == 256


def test_runs_without_alternatives_have_no_rows(tmp_path: Path) -> None:
    archive = Archive(str(tmp_path / "archive"), create=True)
    folder = make_run(tmp_path / "run")
    seal(folder, SIGNER)
    archive.add(folder)
    assert query(archive, "SELECT * FROM pays").num_rows == 0
