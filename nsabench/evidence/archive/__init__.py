"""An archive of verified runs, in a folder or in S3. Needs the extra `nsabench[archive]`.

    schema=1/gpu=NVIDIA_H200/run=RUN_ID/records-HASH.parquet
                                        samples-HASH.parquet
                                        manifest.dsse.json

The tables are the run's own files, byte for byte, so the signature can be checked at any time.
Their names hold the first 16 digits of their hash, so two writers of different content never touch
the same object. The manifest is written last, and readers only look for manifests. So a run is
there as a whole or not at all, also if its writer is killed.

`archive.query` is imported by itself, because it needs DuckDB, which images leave out.
"""

from nsabench.evidence.archive.archive import Added, Archive, ArchivedRun, Surveyed

__all__ = ["Added", "Archive", "ArchivedRun", "Surveyed"]
