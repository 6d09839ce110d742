"""The id of a run. It becomes part of paths and links, so it is of letters, digits and hyphens."""

from __future__ import annotations

from typing import Annotated

from pydantic import StringConstraints

RunId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,99}$")]
