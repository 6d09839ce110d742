"""The templates of pages, reports, scripts and first kernels, in `report/templates`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2


def environment(**options: Any) -> jinja2.Environment:
    import jinja2  # most commands need no template

    return jinja2.Environment(
        loader=jinja2.PackageLoader("nsabench.output.report"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        **options,
    )
