"""The records of one archived run, as they were signed."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from nsabench import limits
from nsabench.assessment.tables import records_in
from nsabench.errors import VerificationFailed
from nsabench.evidence.archive.archive import Archive, ArchivedRun
from nsabench.evidence.archive.seen import sha256
from nsabench.model.record import Record


def records_of(archive: Archive, run: ArchivedRun) -> list[Record]:
    """Raises `UsageError` if the table holds no records, and `VerificationFailed` if it is no
    longer what was signed."""
    with TemporaryDirectory() as scratch:
        name = run.object("records")
        path = archive.store.as_file(name, Path(scratch), limits.TABLE)
        # A copy is made after the survey, and another object may have been put there since.
        if archive.store.folder is None and sha256(path) != run.digest("records"):
            raise VerificationFailed(f"{name} was changed after the signature")
        return records_in(path)
