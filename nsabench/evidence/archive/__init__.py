"""An archive of verified runs, in a folder or in S3. It needs the extra `archive`.

    schema=1/gpu=NVIDIA_H200/run=RUN_ID/records-HASH.parquet  (comparisons and samples likewise)
                                        manifest.dsse.json

The tables are copies of the run's files. A name contains the first 16 digits of the file's hash, so
other content has another name. Readers look for manifests, which are written last.

Import `archive.query` directly: it needs DuckDB, which container images do not have.
"""

from nsabench.evidence.archive.archive import Added, Archive, Surveyed
from nsabench.evidence.archive.runs import ArchivedRun

__all__ = ["Added", "Archive", "ArchivedRun", "Surveyed"]
