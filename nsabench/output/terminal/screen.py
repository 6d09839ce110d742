"""Where output goes: standard output, which may be a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from nsabench.text import shown


class _Console(Console):
    """One that obeys nothing in the texts that it prints: no escapes, no markup, no `:x:`."""

    def render_str(self, text: str, **how: Any) -> Text:
        return super().render_str(shown(text, lines=True), **how)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        # Texts with a style do not pass `render_str`; they are laid out by what they were.
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else shown(text, lines=True), style, control)


def console() -> Console:
    """Standard output: as wide as its tables if it is not a terminal, or as `COLUMNS` says."""
    width = None if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit() else 160
    return _Console(width=width, soft_wrap=False, markup=False, emoji=False)


def interactive(console: Console) -> bool:
    return console.is_terminal and not os.environ.get("CI") and "NO_COLOR" not in os.environ
