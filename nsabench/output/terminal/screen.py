"""Where output goes: standard output, which may be a terminal."""

from __future__ import annotations

import os
import sys

from rich.console import Console


def console() -> Console:
    """Standard output; wide enough for its tables when that is no terminal.

    Without markup: names and reasons are of others, and `[/usr/lib/x.so]` would be a closing tag.
    """
    width = None if sys.stdout.isatty() else 160
    return Console(width=width, soft_wrap=False, markup=False)


def interactive(console: Console) -> bool:
    return console.is_terminal and not os.environ.get("CI") and "NO_COLOR" not in os.environ
