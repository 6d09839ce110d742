"""The sections of a report, top to bottom. Each module of this folder is one; adding a file adds
one. A module has `ORDER`, `TITLE`, `QUESTION`, a function `context(facts)` that returns what its
template needs, and a template of the same name in `nsabench/output/report/templates`. With a
function `applies(facts)` it is left out of the reports of which that is not so.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from typing import Any

from nsabench.output.report.facts import Facts


@dataclass(frozen=True)
class Section:
    """A section, ready to be rendered."""

    id: str
    title: str
    question: str
    template: str
    context: dict[str, Any]


def sections(facts: Facts) -> list[Section]:
    """All sections, in their order."""
    modules = [
        importlib.import_module(f"{__name__}.{module.name}")
        for module in pkgutil.iter_modules(__path__)
        if not module.name.startswith("_")
    ]
    made = []
    for module in sorted(modules, key=lambda m: int(m.ORDER)):
        if hasattr(module, "applies") and not module.applies(facts):
            continue
        name = module.__name__.rpartition(".")[2]
        made.append(
            Section(
                name,
                module.TITLE,
                module.QUESTION,
                f"{name}.html.j2",
                module.context(facts),
            )
        )
    return made
