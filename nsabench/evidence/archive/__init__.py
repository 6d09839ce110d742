"""An archive of verified runs, in a folder or in S3. Needs the extra `nsabench[archive]`.

    schema=1/gpu=NVIDIA_H200/run=RUN_ID/records-HASH.parquet
                                        samples-HASH.parquet
                                        manifest.dsse.json

The tables are the run's own files, byte for byte. Their names hold the first 16 digits of their
hash, so two writers of different content never touch the same object. The manifest is written last,
and readers only look for manifests, so an archive never holds half a run.

Import `archive.query` directly: it needs DuckDB, which images do not have.
"""

from nsabench.evidence.archive.archive import Added, Archive, Surveyed
from nsabench.evidence.archive.runs import ArchivedRun

__all__ = ["Added", "Archive", "ArchivedRun", "Surveyed"]
