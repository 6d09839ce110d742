"""The signed manifest of a run: what was measured where, and the hash of every file."""

from nsabench.evidence.manifest.seal import seal
from nsabench.evidence.manifest.verify import Report, refuse_altered, signed_around, verify
from nsabench.running.folder import MANIFEST

__all__ = ["MANIFEST", "Report", "refuse_altered", "seal", "signed_around", "verify"]
