"""Make and verify the signed manifest of a run.

Its functions raise `VerificationFailed` if something is missing, unreadable, altered or too large.
"""

from nsabench.evidence.manifest.seal import seal
from nsabench.evidence.manifest.verify import Report, refuse_altered, signed_around, verify
from nsabench.running.folder import MANIFEST

__all__ = ["MANIFEST", "Report", "refuse_altered", "seal", "signed_around", "verify"]
