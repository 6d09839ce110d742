"""What commands that read a run have in common: is it what was signed?"""

from __future__ import annotations

from pathlib import Path

from nsabench.cli._say import say
from nsabench.evidence.manifest import refuse_altered
from nsabench.evidence.manifest.statement import Trust
from nsabench.execution.folder import RunFolder


def admit(run: Path) -> None:
    """Say so if the run is unsigned. Raises `UsageError` when there is none, `VerificationFailed`
    when it was altered, or a file of it leads elsewhere."""
    RunFolder.existing(run).refuse_links()
    if refuse_altered(run) is Trust.UNSIGNED:
        say_unsigned(run)


def say_unsigned(run: Path) -> None:
    """On standard error: what a command prints may be read by a program."""
    say(f"nsabench: {run} is unsigned: nothing shows that it was not altered", err=True)
