"""The runs of a site, from folders and archives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

from nsabench import limits
from nsabench.errors import UsageError
from nsabench.evidence.archive import Archive
from nsabench.evidence.archive.archive import ArchivedRun
from nsabench.evidence.manifest import MANIFEST, verify
from nsabench.evidence.manifest.statement import Trust
from nsabench.model.record import Record
from nsabench.model.vocabulary import Catch
from nsabench.output import grouped
from nsabench.output.report import Facts
from nsabench.output.site.leaderboard import at_least_half, is_paired, software
from nsabench.running.folder import RunFolder
from nsabench.verdicts import pays, threshold
from nsabench.verdicts.parquet import TABLES
from nsabench.verdicts.pays import Payment
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
    def payments(self) -> list[Payment]:
        return pays.decide(self.records)

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


def payments(runs: Sequence[SiteRun]) -> list[tuple[SiteRun, Payment]]:
    """Return what pays, once for each device and software. runs: the latest first.

    The latest run says it that decides, and has at least half of the cases of the largest. Unpaired
    software comes last; otherwise the ops with the most cases come first.
    """

    def place(found: tuple[SiteRun, Payment]) -> tuple[str, ...]:
        run, p = found
        return p.op, p.heads, p.direction, p.regime, p.gpu, run.versions

    def order(found: tuple[SiteRun, Payment]) -> tuple[bool, int]:
        run, p = found
        cases = {r.case_id for r in run.records if r.op == p.op}
        return not run.is_paired, -len(cases)

    found = grouped([(run, payment) for run in runs for payment in run.payments], place)
    telling = []
    for several in found.values():
        deciding = [pair for pair in several if not pair[0].missed] or several
        telling.append(at_least_half(deciding, lambda pair: len(pair[1].cells))[0])
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
        [] if missed else threshold.decide_records(records),
        downloads=[(name, quote(f"{ARCHIVE}/{place}")) for name, place in objects.items()],
    )


def _copy(archive: Archive, run: ArchivedRun, to: Path) -> None:
    objects = [(run.object(table), limits.TABLE) for table in TABLES]
    for name, most in [*objects, (run.prefix + MANIFEST, limits.MANIFEST)]:
        path = to / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(archive.store.read(name, most))
