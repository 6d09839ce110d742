"""A public library that an implementation calls. To read what it is does not import it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

from nsabench.model.plan import Origin

UNKNOWN = "of an unknown version"


@dataclass(frozen=True)
class Package:
    """A library that implementations call.

    name: of the distribution or repository. module: its top-level module. github: `OWNER/NAME`.
    pip: the arguments of pip, if not the name. commit: of a repository that is not on PyPI.
    """

    name: str
    module: str
    licence: str
    github: str
    pip: str = ""
    commit: str = ""

    @property
    def install(self) -> str:
        if self.commit:
            return (
                f"put a checkout of https://github.com/{self.github} at the commit "
                f"{self.commit[:12]} on PYTHONPATH"
            )
        return f"pip install {self.pip or self.name}"

    @property
    def version(self) -> str:
        """The installed version, or the commit that is checked out; empty without the library."""
        spec = util.find_spec(self.module)
        if spec is None:
            return ""
        if self.commit:
            return _read_commit(Path((spec.submodule_search_locations or [""])[0]).parent)
        try:
            return metadata.version(self.name)
        except metadata.PackageNotFoundError:  # another distribution has a module of this name
            return ""

    @property
    def origin(self) -> Origin:
        return Origin(package=self.name, version=self.version, licence=self.licence)


def _read_commit(checkout: Path) -> str:
    try:
        return (checkout / ".git/HEAD").read_text().strip()[:12]
    except OSError:
        return UNKNOWN
