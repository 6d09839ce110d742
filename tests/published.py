"""The decode run of docs/results as its folder was, but for its page.

Its records, samples and manifest lie in the archive of docs/results. The other files, which an
archive does not hold, are packed in tests/data/published. It is the one published run that names
the op `decode` and replays of CUDA graphs, so it is kept for what must go on reading such runs.
"""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

from nsabench.evidence.archive import Archive
from nsabench.evidence.archive.archive import TABLES
from nsabench.evidence.manifest import MANIFEST

ROOT = Path(__file__).parents[1]
ARCHIVE = ROOT / "docs" / "results" / "archive"
PACKED = ROOT / "tests" / "data" / "published" / "h200-torch2.11.0-triton3.6.0-decode.tar.xz"
PAGE = "report.html"


def decode_run(parent: Path, *, manifest: bool = False) -> Path:
    """The run's folder below `parent`. Unsigned unless its `manifest` is asked for, since the page
    that the manifest names is missing."""
    with tarfile.open(PACKED) as packed:
        packed.extractall(parent, filter="data")
    folder = parent / PACKED.name.removesuffix(".tar.xz")
    archive = Archive(str(ARCHIVE))
    [run] = [r for r in archive.runs() if set(r.statement.predicate.plan.matrices) == {"decode"}]
    for table in TABLES:
        shutil.copy(ARCHIVE / run.object(table), folder / f"{table}.parquet")
    if manifest:
        shutil.copy(ARCHIVE / run.prefix / MANIFEST, folder / MANIFEST)
    else:
        (folder / MANIFEST).unlink()
    return folder
