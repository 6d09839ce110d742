"""Builds a static site of runs and archives."""

from __future__ import annotations

import shutil
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
from nsabench.model.vocabulary import MARGIN, Catch
from nsabench.output import grouped
from nsabench.output.document import Link, Name, Strong, Table
from nsabench.output.report import HTML, Facts, html, write_html
from nsabench.output.report.page import (
    data_of,
    gather_failures,
    gather_speedups,
    pays,
    render_sections,
)
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
    """A run of a site. facts: None for an archived run; downloads: names and links of files."""

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
    def link(self) -> Link:
        return Link(self.created[:10], f"#run-{self.run_id}")

    @property
    def missed(self) -> list[str]:
        return sorted({r.implementation for r in self.records if r.caught is Catch.MISSED})


def payments(runs: Sequence[SiteRun]) -> list[tuple[SiteRun, BreakEven]]:
    """Return the break-even decisions, one for each device and software. runs: the latest first.

    A decision is from the latest valid run with at least half of the most cases. Unpaired software
    comes last, and ops with many cases come first.
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
    """Return the runs of folders and archives, the latest first, and copy signed ones to `copied`.

    Raises `UsageError` if a place holds no run, and `VerificationFailed` if a run was altered.
    """
    runs: dict[str, SiteRun] = {}
    archived: list[tuple[Archive, ArchivedRun]] = []
    for place in places:
        if (Path(place) / "plan.json").is_file():
            run = _read_folder(Path(place), copied)
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
        raise UsageError("a site needs a run", "give run folders, or an archive.")
    for archive, of_archive in archived:
        _copy_archived(archive, of_archive, copied)
        if of_archive.run_id not in runs:
            runs[of_archive.run_id] = _read_archive(archive, of_archive)
    return sorted(runs.values(), key=lambda run: run.created, reverse=True)


def _read_folder(folder: Path, copied: Path) -> SiteRun:
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


def _read_archive(archive: Archive, run: ArchivedRun) -> SiteRun:
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


def _copy_archived(archive: Archive, run: ArchivedRun, to: Path) -> None:
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
    """Write the site into a new folder, and return its first page. Raises errors as `gather`
    does."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not an empty folder", "give --out a new one.")
    _refuse_inside(places, folder)
    folder.mkdir(parents=True, exist_ok=True)
    runs = gather(places, folder / ARCHIVE)
    for run in runs:
        if run.facts is not None:
            _copy_folder(run.facts, run.trust, folder / RUNS / run.run_id)
            write_html(run.facts, folder / PAGES / run.run_id)
        else:
            write_text(folder / PAGES / run.run_id / HTML, archived_page(run))
    return write_text(folder / INDEX, index(runs))


def _refuse_inside(places: Sequence[str], folder: Path) -> None:
    """Raise `UsageError` for a site inside a run or archive, which it would alter."""
    around = {folder.resolve(), *folder.resolve().parents}
    inside = next((place for place in places if Path(place).resolve() in around), None)
    signed = signed_around(folder)
    if inside is not None or signed is not None:
        raise UsageError(
            f"{folder} is inside {inside or signed}, which must not change",
            "give --out another folder.",
        )


def _copy_folder(facts: Facts, trust: Trust, to: Path) -> None:
    """Copy a run's folder, or only files that nsabench writes if it is unsigned."""
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
    """Return the page of a run from an archive, which keeps only tables."""
    records = run.records
    contexts = {
        "decision": {"run": run, "tally": tally_of_controls(records)},
        "faster": gather_speedups(records, MARGIN, {}),
        "failed": gather_failures(records, lambda case_id, name: ""),
        "records": len(records),
        "trust": [(name, f"{UP}{path}") for name, path in run.downloads],
    }
    if run.payments:
        contexts["pays"] = pays(run.payments, records)
    counts = f"{run.cases} cases", f"{len(records)} records"
    meta = [run.versions, f"run {run.run_id}", f"{run.created} UTC", *counts]
    title = f"{', '.join(run.ops)} on {run.device}"
    data = data_of(records, Ceilings(), MARGIN, tolerances={})
    return render_sections(title, meta, contexts, data, is_invalid=bool(run.missed))


def _build_payments(runs: Sequence[SiteRun]) -> Table:
    rows = []
    for run, p in payments(runs):
        against, machine = ", ".join(p.used[1]), f"{p.gpu or 'a CPU'}, {run.versions}"
        rows.append((p.what, p.regime, Strong(p.sentence), against or "–", machine, run.link))
    return Table("Pays", ("op", "regime", "decision", "against", "on", "run"), rows)


def _build_decisions(runs: Sequence[SiteRun]) -> Table:
    rows = []
    for run in sorted(runs, key=lambda run: not run.is_paired):
        for d in run.decisions:
            why = "; ".join(d.reasons) if d.min_length is None else ""
            machine = f"{d.gpu or 'a CPU'}, {d.on}"
            decision = Strong(d.sentence)
            rows.append(
                (d.op, Name(d.candidate), d.regime, decision, why or "–", machine, run.link)
            )
    columns = ("op", "candidate", "regime", "decision", "why", "on", "run")
    return Table("Decisions", columns, rows)


def index(runs: Sequence[SiteRun]) -> str:
    return html.render(
        "site.html.j2",
        ("site.js",),
        html.rows([]),
        runs=runs,
        pays=_build_payments(runs),
        decisions=_build_decisions(runs),
        boards=leaderboards((run.run_id, run.records) for run in runs if not run.missed),
        keys=sorted({run.keyid for run in runs if run.keyid and run.trust is not Trust.EPHEMERAL}),
        signed=any(run.trust is not Trust.UNSIGNED for run in runs),
        unsigned=Trust.UNSIGNED,
        devices=sorted({run.device for run in runs}),
    )
