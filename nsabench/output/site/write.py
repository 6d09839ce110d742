"""Writing a site: pages and downloads that any static host, or a browser alone, can show."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from nsabench.errors import UsageError
from nsabench.evidence.manifest import signed_around
from nsabench.evidence.manifest.statement import Trust
from nsabench.files import write_text
from nsabench.model.measurement import Ceilings
from nsabench.model.vocabulary import BENIGN, MARGIN, Role
from nsabench.output.report import HTML, Facts, html, payment_chart, write_html
from nsabench.output.report.page import SCRIPTS, data_of
from nsabench.output.site.leaderboard import leaderboards
from nsabench.output.site.runs import ARCHIVE, RUNS, SiteRun, gather, payments
from nsabench.output.standing import tally_of_controls
from nsabench.running.folder import KEPT

INDEX = "index.html"
PAGES = "pages"
UP = "../../"  # from the page of a run to the site
DATA = (
    *(
        "plan.json",
        "log.jsonl",
        "environment.json",
        "records.parquet",
        "comparisons.parquet",
        "samples.parquet",
    ),
    *("thresholds.yaml", "selection_report.md"),
)


def write(places: Sequence[str], folder: Path) -> Path:
    """Write the site of runs and archives into a new folder, and return its first page.

    Raises `UsageError` for a folder that is not empty, and as `gather` does.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not an empty folder", "give --out a new one.")
    _refuse_inside(places, folder)
    folder.mkdir(parents=True, exist_ok=True)
    runs = gather(places, folder / ARCHIVE)
    for run in runs:
        if run.facts is not None:
            _keep(run.facts, run.trust, folder / RUNS / run.run_id)
            write_html(run.facts, folder / PAGES / run.run_id)
        else:
            write_text(folder / PAGES / run.run_id / HTML, archived_page(run))
    return write_text(folder / INDEX, index(runs))


def _refuse_inside(places: Sequence[str], folder: Path) -> None:
    """Raises `UsageError` for a site inside one of its runs or archives: it would hold itself, and
    alter what was signed."""
    around = {folder.resolve(), *folder.resolve().parents}
    inside = next((place for place in places if Path(place).resolve() in around), None)
    signed = signed_around(folder)
    if inside is not None or signed is not None:
        raise UsageError(
            f"{folder} lies in {inside or signed}, which stays as it is",
            "give --out another folder.",
        )


def _keep(facts: Facts, trust: Trust, to: Path) -> None:
    """Copy a run's folder. If it is unsigned, copy only the data that nsabench writes: other files
    would appear as the publisher's, and nothing shows who made them."""
    of = facts.folder
    paths = [path for path in sorted(of.path.rglob("*")) if path.is_file()]
    if trust is Trust.UNSIGNED:
        shards = [of.shard(run_id).path for run_id in facts.plan.shards]
        known = {of.path / name for name in DATA}
        known |= {shard / name for shard in shards for name in KEPT}
        paths = [p for p in paths if p in known or (p.parent == of.logs and p.suffix == ".log")]
    for path in paths:
        copy = to / path.relative_to(of.path)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy, follow_symlinks=False)


def archived_page(run: SiteRun) -> str:
    """Return the page of a run of which an archive keeps the tables alone."""
    records = run.records
    data = data_of(records, Ceilings(), MARGIN, tolerances={})
    failed = [r for r in records if r.role is not Role.CONTROL and r.status not in BENIGN]
    return html.render(
        "archived.html.j2",
        SCRIPTS,
        data,
        run=run,
        charts_of_payments=payment_chart.charts(run.payments, records),
        meaning=run.trust.meaning,
        margin=MARGIN,
        tally=tally_of_controls(records),
        compared=any(r.speedup is not None for r in records if r.role is Role.CANDIDATE),
        failed=Counter(
            (r.implementation, r.status, r.diagnosis or r.reason) for r in failed
        ).most_common(),
        cautions=sorted({r.caution for r in records if r.caution}),
        downloads=[(name, f"{UP}{path}") for name, path in run.downloads],
    )


def index(runs: Sequence[SiteRun]) -> str:
    return html.render(
        "site.html.j2",
        ("site.js",),
        html.rows([]),
        runs=runs,
        payments=payments(runs),
        boards=leaderboards((run.run_id, run.records) for run in runs if not run.missed),
        keys=sorted({run.keyid for run in runs if run.keyid and run.trust is not Trust.EPHEMERAL}),
        signed=any(run.trust is not Trust.UNSIGNED for run in runs),
        unsigned=Trust.UNSIGNED,
        devices=sorted({run.device for run in runs}),
    )
