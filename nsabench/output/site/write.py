"""Writing a site: pages and downloads that any static host, or a browser alone, can show."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from nsabench.errors import EnvironmentRefused, UsageError
from nsabench.evidence.archive import Archive
from nsabench.evidence.manifest.statement import Trust
from nsabench.output import archive_page
from nsabench.output.report import HTML, html, write_html
from nsabench.output.report.files import replace
from nsabench.output.site import archived
from nsabench.output.site.leaderboard import leaderboards
from nsabench.output.site.runs import ARCHIVE, RUNS, SiteRun, gather

INDEX = "index.html"
TRENDS = "trends.html"
PAGES = "pages"


def write(places: Sequence[str], folder: Path) -> Path:
    """Write the site of runs and archives into a new folder; return its first page.

    Raises `UsageError` for a folder that is not empty or a place that holds no run, and as
    `gather` does.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not an empty folder", "give --out a new one.")
    folder.mkdir(parents=True, exist_ok=True)
    runs = gather(places, folder / ARCHIVE)
    for run in runs:
        if run.facts is not None:
            shutil.copytree(run.facts.folder.path, folder / RUNS / run.run_id)
            write_html(run.facts, folder / PAGES / run.run_id)
        else:
            replace(folder / PAGES / run.run_id / HTML, archived.render(run))
    return replace(folder / INDEX, index(runs, trends=_trends(folder)))


def _trends(folder: Path) -> bool:
    """Whether there is a page of trends: signed runs with a candidate are there, and DuckDB is."""
    if not (folder / ARCHIVE).is_dir():
        return False
    try:
        archive_page.write(Archive(str(folder / ARCHIVE)), folder / TRENDS)
    except (UsageError, EnvironmentRefused):
        return False
    return True


def index(runs: Sequence[SiteRun], *, trends: bool) -> str:
    """The first page. trends: whether there is a page of them."""
    return html.render(
        "site.html.j2",
        ("site.js",),
        html.rows([], (), ()),
        runs=runs,
        pays=any(run.payments for run in runs),
        boards=leaderboards((run.run_id, run.records) for run in runs if not run.missed),
        trends=TRENDS if trends else "",
        keys=sorted({run.keyid for run in runs if run.keyid and run.trust is not Trust.EPHEMERAL}),
        signed=any(run.trust is not Trust.UNSIGNED for run in runs),
        unsigned=Trust.UNSIGNED,
        devices=sorted({run.device for run in runs}),
    )
