"""Make and read the keys that sign runs, and hide them from the code that is measured."""

from nsabench.signing.signer import Signer, load_signer, named_signer

__all__ = ["Signer", "load_signer", "named_signer"]
