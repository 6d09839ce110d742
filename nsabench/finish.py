"""What `all` derives from a finished run, in this order: nothing is written after the signature."""

from __future__ import annotations

from nsabench.run import Finished


def finish(finished: Finished) -> None:
    """Write what people and programs read of a run into its folder."""
