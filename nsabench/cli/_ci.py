"""How commands tell a CI system what failed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from nsabench.cli._say import say
from nsabench.cli._trust import refuse_signed
from nsabench.errors import UsageError
from nsabench.output import ci
from nsabench.output.ci import Test


def tell(tests: Sequence[Test], junit: Path | None, name: str, kernels: str = "") -> None:
    """Write JUnit XML if it is asked for. On a runner of GitHub, also print annotations on standard
    error, where it looks for them. kernels: the user's file."""
    if junit is not None:
        ci.write_junit(tests, junit, name)
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in ci.remarks(tests, _in_the_repository(kernels)):
            say(line, err=True)


def outside_the_run(junit: Path | None, out: Path | None = None) -> None:
    """Raises `UsageError` for a file inside the run at `out`, or inside any signed run."""
    if junit is None:
        return
    refuse_signed(f"--junit {junit}", junit)
    if out is not None and out.resolve() in junit.resolve().parents:
        raise UsageError(
            f"--junit {junit} is in the folder of the run, which will be signed as it is",
            "name a file beside it.",
        )


def _in_the_repository(kernels: str) -> str:
    workspace = Path(os.environ.get("GITHUB_WORKSPACE", "."))
    try:
        return str(Path(kernels).relative_to(workspace.resolve())) if kernels else ""
    except ValueError:
        return ""
