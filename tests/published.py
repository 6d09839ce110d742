"""Runs of docs/results as their folders were.

One is packed there as a whole, and so are those of five Tritons. The records, samples and manifests
of two others lie in the archive; their other files, which an archive does not hold, are packed in
tests/data/published, without their pages. One is the one published run that names the op `decode`
and replays of CUDA graphs, the other has nothing but backwards, so they are kept for what must go
on reading such runs.
"""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

from nsabench.evidence.archive import Archive
from nsabench.evidence.manifest import MANIFEST

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
ARCHIVE = RESULTS / "archive"
WHOLE = RESULTS / "h200-torch2.11.0-triton3.6.0-whole.tar.xz"
TRITONS = RESULTS / "h200-torch2.11.0-tritons.tar.xz"
PACKED = ROOT / "tests" / "data" / "published"
PAGE = "report.html"


def whole_run(parent: Path) -> Path:
    """The folder of an earlier run of the whole attention below `parent`, signed."""
    return _extracted(WHOLE, parent)


def tritons_runs(parent: Path) -> list[Path]:
    """The folders of the runs of five Tritons below `parent`, signed, the oldest Triton first."""
    return sorted(_extracted(TRITONS, parent).iterdir())


def decode_run(parent: Path, *, manifest: bool = False) -> Path:
    """The folder of the decode run below `parent`. Unsigned unless its `manifest` is asked for,
    since the page that the manifest names is missing."""
    return _unpacked("decode", "20261122T101440Z-a3dd0a", parent, manifest)


def backward_run(parent: Path) -> Path:
    """The folder of the run of backwards below `parent`, unsigned."""
    return _unpacked("backward", "20261122T141010Z-d3c53a", parent, manifest=False)


def _unpacked(kind: str, run_id: str, parent: Path, manifest: bool) -> Path:
    folder = _extracted(PACKED / f"h200-torch2.11.0-triton3.6.0-{kind}.tar.xz", parent)
    archive = Archive(str(ARCHIVE))
    [run] = [r for r in archive.runs() if r.run_id == run_id]
    for table in run.tables:
        shutil.copy(ARCHIVE / run.object(table), folder / f"{table}.parquet")
    if manifest:
        shutil.copy(ARCHIVE / run.prefix / MANIFEST, folder / MANIFEST)
    else:
        (folder / MANIFEST).unlink(missing_ok=True)
    return folder


def _extracted(packed: Path, parent: Path) -> Path:
    with tarfile.open(packed) as files:
        files.extractall(parent, filter="data")
    return parent / packed.name.removesuffix(".tar.xz")
