"""A public library: its name, its licence, where it comes from, and what of it is installed."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata, util

from nsabench.model.origin import Origin
from nsabench.packages import repository
from nsabench.packages.repository import Repository


@dataclass(frozen=True)
class Package:
    """A library that implementations call.

    name: of the distribution, or of the repository. module: what is imported, which is how it is
    known to be there. licence: an SPDX expression, as the library states it. install: the command
    that brings it. site: where it is developed. repository: for what is no package on PyPI.
    """

    name: str
    module: str
    licence: str
    install: str
    site: str
    repository: Repository | None = None

    @property
    def version(self) -> str:
        """The installed version, a commit of a repository; empty where it is not here."""
        if self.repository is not None:
            return self.repository.commit[:12] if repository.is_here(self.repository) else ""
        try:
            version = metadata.version(self.name)
        except metadata.PackageNotFoundError:
            return ""
        return version if _has(self.module) else ""

    @property
    def origin(self) -> Origin:
        """What records say of it."""
        return Origin(package=self.name, version=self.version, licence=self.licence)


def _has(module: str) -> bool:
    """Whether a top-level module can be found; its packages are not imported for that."""
    return util.find_spec(module.partition(".")[0]) is not None
