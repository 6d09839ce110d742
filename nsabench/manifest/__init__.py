"""The signed manifest of a run: what was measured where, and the hash of every file."""

from nsabench.manifest.seal import MANIFEST, seal
from nsabench.manifest.verify import Report, is_in_signed, refuse_altered, verify

__all__ = ["MANIFEST", "Report", "is_in_signed", "refuse_altered", "seal", "verify"]
