"""An archive of verified runs, in a folder or in S3. Needs the extra `archive`.

    schema=1/gpu=NVIDIA_H200/run=RUN_ID/records-HASH.parquet
                                        samples-HASH.parquet
                                        manifest.dsse.json

The tables are the run's own files. Their names hold the first 16 digits of their hash, so writers
of different content never touch the same object. Readers look for manifests, which come last.

Import `archive.query` directly: it needs DuckDB, which images do not have.
"""

from nsabench.evidence.archive.archive import Added, Archive, Surveyed
from nsabench.evidence.archive.runs import ArchivedRun

__all__ = ["Added", "Archive", "ArchivedRun", "Surveyed"]
