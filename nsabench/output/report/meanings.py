"""What a module says about itself, for readers who will not open it."""

from __future__ import annotations

import importlib
import inspect


def first_line(module: str) -> str:
    """The first paragraph of a module's docstring, on one line."""
    text = inspect.getdoc(importlib.import_module(module)) or ""
    return " ".join(text.partition("\n\n")[0].split())
