"""What `all` derives from a finished run, in this order: nothing is written after the signature."""

from __future__ import annotations

import os

from nsabench.manifest import keyless, seal
from nsabench.manifest.keys import Signer, load_signer
from nsabench.manifest.statement import Trust
from nsabench.run import Finished


def prepare() -> Signer:
    """What `finish` needs, before anything is measured.

    Raises `UsageError` for a bad key, `EnvironmentRefused` where sigstore is wanted and missing.
    """
    if keyless.is_wanted(os.environ):
        keyless.require()
    return load_signer()


def finish(finished: Finished, signer: Signer) -> str:
    """Write what people and programs read of a run into its folder, and sign it.

    Returns a sentence about the signature.
    """
    by = seal(finished.folder.path, signer).predicate.signer
    if keyless.is_wanted(os.environ):
        keyless.sign(finished.folder.path)
    if by.trust is Trust.EPHEMERAL:
        return (
            "signed with an ephemeral key: `nsabench verify` shows whether it was altered, but "
            "nothing shows by whom it was made (`nsabench key --help`)"
        )
    return f"signed with the key {by.keyid}"
