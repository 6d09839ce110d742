"""The runs of a site, from folders and archives: what each measured, and who vouches for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

from nsabench import limits
from nsabench.assessment import pays, threshold
from nsabench.assessment.pays import Payment
from nsabench.assessment.threshold import Decision
from nsabench.errors import UsageError
from nsabench.evidence.archive import Archive
from nsabench.evidence.archive.archive import ArchivedRun
from nsabench.evidence.manifest import MANIFEST, verify
from nsabench.evidence.manifest.statement import Trust
from nsabench.evidence.manifest.tables import TABLES
from nsabench.execution.folder import RunFolder
from nsabench.model.record import Record
from nsabench.model.vocabulary import Catch
from nsabench.output.report import Facts
from nsabench.output.site.leaderboard import is_paired, telling, versions

ARCHIVE, RUNS = "archive", "runs"  # folders of a site
_FILES = tuple(f"{table}.parquet" for table in TABLES)


@dataclass(frozen=True)
class SiteRun:
    """A run as the site shows it. facts: all of it, of a run folder; an archive keeps its tables
    alone. keyid: of the key that signed it; empty where nobody did. downloads: names of files and
    where they lie in the site, as a link has it."""

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
        """From which lengths on the ops of the run pay."""
        return pays.decide(self.records)

    @property
    def device(self) -> str:
        return next((r.gpu_name for r in self.records if r.gpu_name), "") or "a CPU"

    @property
    def versions(self) -> str:
        return versions(self.records[0]) if self.records else ""

    @property
    def is_paired(self) -> bool:
        """Whether its torch and its Triton belong together."""
        return not self.records or is_paired(self.records[0])

    @property
    def ops(self) -> list[str]:
        return sorted({r.op for r in self.records})

    @property
    def cases(self) -> int:
        return len({r.case_id for r in self.records})

    def cases_of(self, op: str) -> int:
        return len({r.case_id for r in self.records if r.op == op})

    @property
    def missed(self) -> list[str]:
        """Controls that got away: the run decides nothing."""
        return sorted({r.implementation for r in self.records if r.caught is Catch.MISSED})


def paired_first(runs: Sequence[SiteRun]) -> list[SiteRun]:
    """Those whose torch and Triton are no pair behind the others; few have such software."""
    return sorted(runs, key=lambda run: not run.is_paired)


def payments(runs: Sequence[SiteRun]) -> list[tuple[SiteRun, Payment]]:
    """What pays, once for each device and software: runs that decide nothing say it where no other
    does, and which of several others is told by `telling`. The ops with most cases come first.

    runs: the latest first.
    """
    found: dict[tuple[str, ...], list[tuple[SiteRun, Payment]]] = {}
    for run in runs:
        for one in run.payments:
            key = (one.op, one.heads, str(one.direction), one.regime, one.gpu, run.versions)
            found.setdefault(key, []).append((run, one))
    told = []
    for several in found.values():
        deciding = [one for one in several if not one[0].missed]
        told.append(telling(deciding or several, lambda one: len(one[1].cells)))
    return sorted(told, key=lambda one: (not one[0].is_paired, -one[0].cases_of(one[1].op)))


def gather(places: Iterable[str], copied: Path) -> list[SiteRun]:
    """The runs of folders and archives, a run once, the latest first. What is signed of them is
    copied into a new archive at `copied`.

    Raises `UsageError` for a place that is neither, and `VerificationFailed` for a run that is not
    what was signed.
    """
    runs: dict[str, SiteRun] = {}
    archived: list[tuple[Archive, ArchivedRun]] = []
    for place in places:
        if (Path(place) / "plan.json").is_file():
            run = _of_folder(Path(place), copied)
            runs[run.run_id] = run
        else:
            archive = Archive(place)
            found = archive.survey()
            if found.broken:
                raise UsageError(
                    f"{place} is not sound: {found.broken[0]}",
                    "`nsabench archive verify` says what is broken.",
                )
            archived += [(archive, one) for one in found.sound]
    if not runs and not archived:
        raise UsageError("there is no run for a site", "give run folders, or an archive.")
    for archive, one in archived:
        _copy(archive, one, copied)
        if one.run_id not in runs:
            runs[one.run_id] = _of_archive(archive, one)
    return sorted(runs.values(), key=lambda run: run.created, reverse=True)


def _of_folder(folder: Path, copied: Path) -> SiteRun:
    RunFolder.existing(folder).refuse_links()
    trust, keyid = Trust.UNSIGNED, ""
    if (folder / MANIFEST).exists():
        report = verify(folder)
        report.raise_if_broken()
        trust, keyid = report.trust, report.keyid
        Archive(str(copied), create=True).add(folder)
    facts = Facts.read(folder)
    return SiteRun(
        facts.plan.run_id,
        f"{facts.plan.created:%Y-%m-%d %H:%M}",
        trust,
        keyid,
        facts.records,
        [] if facts.invalidating else facts.decisions,
        facts,
        [
            (name, quote(f"{RUNS}/{facts.plan.run_id}/{name}"))
            for name in _FILES
            if (folder / name).exists()
        ],
    )


def _of_archive(archive: Archive, run: ArchivedRun) -> SiteRun:
    records = archive.records(run)
    predicate = run.statement.predicate
    missed = any(r.caught is Catch.MISSED for r in records)
    decisions = [] if missed else threshold.decide_records(records)
    return SiteRun(
        run.run_id,
        f"{predicate.plan.created:%Y-%m-%d %H:%M}",
        run.trust,
        predicate.signer.keyid,
        records,
        decisions,
        downloads=[
            *((f"{table}.parquet", quote(f"{ARCHIVE}/{run.object(table)}")) for table in TABLES),
            (MANIFEST, quote(f"{ARCHIVE}/{run.prefix}{MANIFEST}")),
        ],
    )


def _copy(archive: Archive, run: ArchivedRun, to: Path) -> None:
    objects = [(run.object(table), limits.TABLE) for table in TABLES]
    for name, most in [*objects, (run.prefix + MANIFEST, limits.MANIFEST)]:
        path = to / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(archive.store.read(name, most))
