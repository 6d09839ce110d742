"""Reads what is installed."""

from __future__ import annotations

import platform
import re
from importlib import metadata

from nsabench.machine.environment.model import Software
from nsabench.model.description import DescribedSoftware
from nsabench.model.version import __version__


def read_software(described: DescribedSoftware) -> Software:
    """Return what the worker said, and the installation."""
    return Software(
        **described.model_dump(),
        nsabench=__version__,
        python=platform.python_version(),
        pinned_triton=triton_pinned_by_torch(),
        distributions=_list_distributions(),
    )


def _list_distributions() -> dict[str, str]:
    """Return the version of each distribution; of two with one name, the one that is imported."""
    versions: dict[str, str] = {}
    for installed in metadata.distributions():
        fields = installed.metadata  # each access reads the whole file
        # Remains of a broken uninstall have no name.
        name = fields["Name"] if fields is not None else None
        if name:
            versions.setdefault(re.sub(r"[-_.]+", "-", name).lower(), fields["Version"] or "")
    return dict(sorted(versions.items()))


def triton_pinned_by_torch() -> str | None:
    """Return the triton that the installed torch requires, if any."""
    try:
        requirements = metadata.requires("torch") or []
    except metadata.PackageNotFoundError:
        return None
    matches = (re.match(r"(?:pytorch-)?triton\s*\(?==\s*([\w.+]+)", text) for text in requirements)
    return next((match[1] for match in matches if match), None)
