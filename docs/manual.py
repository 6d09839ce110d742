"""Build the manual as a site with search: `./just docs`.

The pages link to each other across the repository, so all of them are first copied to one folder,
each under its path in the repository.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "docs" / "mkdocs.yml"
SOURCE = ROOT / "results" / "manual" / "source"
SITE = ROOT / "results" / "manual" / "site"
KINDS = ("*.md", "*.png", "*.svg", "*.yml", "*.pub", "*.json")


def pages() -> Iterator[Path]:
    """Yield the pages and the files that they show or link to, as paths in the repository."""
    yield from (path.relative_to(ROOT) for path in sorted(ROOT.glob("*.md")))
    for folder in ("docs", "notes", "kernels", "docker", "tests"):
        for kind in KINDS:
            pattern = kind if folder in ("kernels", "docker", "tests") else f"**/{kind}"
            yield from (path.relative_to(ROOT) for path in sorted((ROOT / folder).glob(pattern)))


def build() -> int:
    """Build the site, and return the exit code. A link that leads nowhere is an error."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    for page in pages():
        if page != CONFIG.relative_to(ROOT) and "archive" not in page.parts:
            (SOURCE / page).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / page, SOURCE / page)
    # Without --quiet, since `strict` fails only for warnings that are not hidden.
    command = [sys.executable, "-m", "mkdocs", "build", "--config-file", CONFIG]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, check=False, env=quiet).returncode


if __name__ == "__main__":
    sys.exit(build())
