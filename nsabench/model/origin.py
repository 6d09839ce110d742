"""What an implementation was written in: a library, its version or commit, and its licence."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Origin(BaseModel):
    """As records, pages and manifests say it; empty texts: an implementation calls no library.

    package: the name, such as `fla-core`. version: the installed version, or the commit of a
    repository; empty where it is not here. licence: an SPDX expression.
    """

    model_config = ConfigDict(frozen=True)

    package: str = ""
    version: str = ""
    licence: str = ""

    def __str__(self) -> str:
        return f"{self.package} {self.version}".rstrip()
