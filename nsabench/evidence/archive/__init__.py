"""An archive of verified runs, in a folder or in S3. Needs the extra `nsabench[archive]`.

    schema=1/gpu=NVIDIA_H200/run=RUN_ID/records-HASH.parquet
                                        samples-HASH.parquet
                                        manifest.dsse.json

The tables are the run's own files, byte for byte, so the signature can be checked again at any
time. Their names hold the first 16 digits of their hash: writers of different content never touch
the same object. The manifest is written last and only where there is none, and readers go by
manifests alone: a run is there as a whole or not at all, whoever else writes, or dies, meanwhile.

A query (`archive.query`) is imported by itself: it needs DuckDB, which images leave out.
"""

from nsabench.evidence.archive.archive import Added, Archive, ArchivedRun, Surveyed
from nsabench.evidence.archive.leftovers import leftovers, remove

__all__ = ["Added", "Archive", "ArchivedRun", "Surveyed", "leftovers", "remove"]
