"""Builds a site of runs and archives: pages and downloads that any static host, or a browser alone,
can show."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

from nsabench import limits
from nsabench.errors import UsageError
from nsabench.evidence.archive import Archive
from nsabench.evidence.archive.archive import ArchivedRun
from nsabench.evidence.manifest import MANIFEST, signed_around, verify
from nsabench.evidence.manifest.statement import Trust
from nsabench.files import write_text
from nsabench.model.measurement import Ceilings
from nsabench.model.record import Record
from nsabench.model.vocabulary import BENIGN, MARGIN, Catch, Role
from nsabench.output import grouped
from nsabench.output.report import HTML, Facts, html, payment_chart, write_html
from nsabench.output.report.page import SCRIPTS, data_of
from nsabench.output.site.leaderboard import at_least_half, is_paired, leaderboards, software
from nsabench.output.standing import tally_of_controls
from nsabench.running.folder import KEPT, RunFolder
from nsabench.verdicts import break_even, threshold
from nsabench.verdicts.break_even import BreakEven
from nsabench.verdicts.parquet import TABLES
from nsabench.verdicts.threshold import Decision

ARCHIVE, RUNS = "archive", "runs"  # folders of a site


@dataclass(frozen=True)
class SiteRun:
    """A run as the site shows it. facts: of a run folder; an archive keeps the tables alone.
    downloads: names of files and the links to them."""

    run_id: str
    created: str
    trust: Trust
    keyid: str
    records: Sequence[Record]
    decisions: Sequence[Decision]
    facts: Facts | None = None
    downloads: Sequence[tuple[str, str]] = ()

    @cached_property
    def payments(self) -> list[BreakEven]:
        return break_even.decide(self.records)

    @property
    def device(self) -> str:
        return next((r.gpu_name for r in self.records if r.gpu_name), "") or "a CPU"

    @property
    def versions(self) -> str:
        return software(self.records[0]) if self.records else ""

    @property
    def is_paired(self) -> bool:
        return not self.records or is_paired(self.records[0])

    @property
    def ops(self) -> list[str]:
        return sorted({r.op for r in self.records})

    @property
    def cases(self) -> int:
        return len({r.case_id for r in self.records})

    @property
    def missed(self) -> list[str]:
        return sorted({r.implementation for r in self.records if r.caught is Catch.MISSED})


def payments(runs: Sequence[SiteRun]) -> list[tuple[SiteRun, BreakEven]]:
    """Return what pays, once for each device and software. runs: the latest first.

    The latest run says it that decides, and has at least half of the cases of the largest. Unpaired
    software comes last; otherwise the ops with the most cases come first.
    """

    def place(found: tuple[SiteRun, BreakEven]) -> tuple[str, ...]:
        run, p = found
        return p.op, p.heads, p.direction, p.regime, p.gpu, run.versions

    def order(found: tuple[SiteRun, BreakEven]) -> tuple[bool, int]:
        run, p = found
        cases = {r.case_id for r in run.records if r.op == p.op}
        return not run.is_paired, -len(cases)

    found = grouped([(run, payment) for run in runs for payment in run.payments], place)
    telling = []
    for several in found.values():
        deciding = [pair for pair in several if not pair[0].missed] or several
        telling.append(at_least_half(deciding, lambda pair: len(pair[1].tested))[0])
    return sorted(telling, key=order)


def gather(places: Iterable[str], copied: Path) -> list[SiteRun]:
    """Return the runs of folders and archives, a run once, the latest first.

    Signed runs are copied into a new archive at `copied`. Raises `UsageError` for a place that is
    neither, and `VerificationFailed` for a run that is not what was signed.
    """
    runs: dict[str, SiteRun] = {}
    archived: list[tuple[Archive, ArchivedRun]] = []
    for place in places:
        if (Path(place) / "plan.json").is_file():
            run = _of_folder(Path(place), copied)
            runs[run.run_id] = run
            continue
        archive = Archive(place)
        found = archive.survey()
        if found.broken:
            raise UsageError(
                f"{place} is not sound: {found.broken[0]}",
                "`nsabench archive verify` says what is broken.",
            )
        archived += [(archive, sound) for sound in found.sound]
    if not runs and not archived:
        raise UsageError("there is no run for a site", "give run folders, or an archive.")
    for archive, of_archive in archived:
        _copy(archive, of_archive, copied)
        if of_archive.run_id not in runs:
            runs[of_archive.run_id] = _of_archive(archive, of_archive)
    return sorted(runs.values(), key=lambda run: run.created, reverse=True)


def _of_folder(folder: Path, copied: Path) -> SiteRun:
    RunFolder.existing(folder).refuse_links()
    trust, keyid = Trust.UNSIGNED, ""
    if (folder / MANIFEST).exists():
        report = verify(folder)
        report.raise_if_broken()
        trust, keyid = report.trust, report.keyid
        Archive(str(copied), create=True).add_verified(report)
    facts = Facts.read(folder)
    names = [f"{table}.parquet" for table in TABLES if (folder / f"{table}.parquet").exists()]
    return SiteRun(
        facts.plan.run_id,
        f"{facts.plan.created:%Y-%m-%d %H:%M}",
        trust,
        keyid,
        facts.records,
        [] if facts.invalidating else facts.decisions,
        facts,
        [(name, quote(f"{RUNS}/{facts.plan.run_id}/{name}")) for name in names],
    )


def _of_archive(archive: Archive, run: ArchivedRun) -> SiteRun:
    records = archive.records(run)
    predicate = run.statement.predicate
    missed = any(r.caught is Catch.MISSED for r in records)
    tables = {f"{table}.parquet": run.object(table) for table in TABLES}
    objects = tables | {MANIFEST: f"{run.prefix}{MANIFEST}"}
    return SiteRun(
        run.run_id,
        f"{predicate.plan.created:%Y-%m-%d %H:%M}",
        run.trust,
        predicate.signer.keyid,
        records,
        [] if missed else threshold.decide_all([threshold.of_records(records)]),
        downloads=[(name, quote(f"{ARCHIVE}/{place}")) for name, place in objects.items()],
    )


def _copy(archive: Archive, run: ArchivedRun, to: Path) -> None:
    objects = [(run.object(table), limits.TABLE) for table in TABLES]
    for name, most in [*objects, (run.prefix + MANIFEST, limits.MANIFEST)]:
        path = to / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(archive.store.read(name, most))


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
    """Copy a run's folder. If it is unsigned, copy only the data that nsabench writes: visitors
    would take other files for the publisher's."""
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
