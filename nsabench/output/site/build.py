from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

from nsabench import limits
from nsabench.errors import UsageError, VerificationFailed
from nsabench.evidence.archive import Archive
from nsabench.evidence.archive.runs import ArchivedRun, leave_out_shards
from nsabench.evidence.manifest import MANIFEST, signed_around
from nsabench.evidence.manifest.statement import Trust
from nsabench.files import refuse_filled, write_text
from nsabench.model.measurement import Ceilings
from nsabench.model.record import Record
from nsabench.model.vocabulary import MARGIN, Catch
from nsabench.output.document import Link, Name, Strong, TableBlock
from nsabench.output.report import HTML, html
from nsabench.output.report.page import (
    data_of,
    gather_failures,
    gather_speedups,
    pays,
    render_sections,
)
from nsabench.output.site.leaderboard import is_paired, leaderboards, software
from nsabench.output.standing import tally_of_controls
from nsabench.verdicts import break_even, threshold
from nsabench.verdicts.break_even import BreakEven
from nsabench.verdicts.tables import TABLES
from nsabench.verdicts.threshold import Decision

ARCHIVE = "archive"  # folder of a site
INDEX = "index.html"
PAGES = "pages"
UP = "../../"  # the path from the page of a run to the site


@dataclass(frozen=True)
class SiteRun:
    """A run that a site shows. `downloads` has names and links of files."""

    run_id: str
    created: str
    trust: Trust
    keyid: str
    records: Sequence[Record]
    decisions: Sequence[Decision]
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
        date = self.created[:10].replace("-", "\u2011")  # no line breaks at this hyphen
        return Link(f"{date}, {self.trust}", f"#run-{self.run_id}")

    @property
    def missed(self) -> list[str]:
        return sorted({r.implementation for r in self.records if r.caught is Catch.MISSED})


def payments(runs: Sequence[SiteRun]) -> list[tuple[SiteRun, BreakEven]]:
    """Return each break-even decision on a device and software, with its run: the valid run that
    tested the most cases. Software whose Triton is not the one that torch pins comes last."""
    most: dict[tuple[str, ...], tuple[SiteRun, BreakEven]] = {}
    for run in runs:
        for p in run.payments if not run.missed else ():
            place = (p.op, p.heads, p.direction, p.regime, p.gpu, run.versions)
            if place not in most or len(p.tested) > len(most[place][1].tested):
                most[place] = run, p
    return sorted(most.values(), key=lambda pair: not pair[0].is_paired)


def gather(
    places: Iterable[str], copied: Path, trusted: frozenset[str], require: Trust
) -> list[SiteRun]:
    """Return the runs of archives, the latest first, and copy their files to `copied`."""
    runs: dict[str, SiteRun] = {}
    for place in places:
        archive = Archive(place)
        found = archive.survey(trusted, require)
        if found.broken:
            raise VerificationFailed(
                f"{place} is not sound: {found.broken[0]}",
                "repeat `nsabench archive verify` with the same keys.",
            )
        for run in leave_out_shards(found.sound):
            _copy(archive, run, copied)
            runs[run.run_id] = _read(archive, run)
    if not runs:
        raise UsageError("a site needs a run", "add one with `nsabench archive add RUN --to DIR`.")
    return sorted(runs.values(), key=lambda run: run.created, reverse=True)


def _read(archive: Archive, run: ArchivedRun) -> SiteRun:
    records = archive.records(run)
    predicate = run.predicate
    missed = any(r.caught is Catch.MISSED for r in records)
    tables = {f"{table}.parquet": run.object(table) for table in TABLES}
    objects = tables | {MANIFEST: f"{run.prefix}{MANIFEST}"}
    return SiteRun(
        run.run_id,
        f"{predicate.plan.created:%Y-%m-%d %H:%M}",
        run.trust,
        predicate.signer.keyid,
        records,
        [] if missed else threshold.decide_run(records),
        downloads=[(name, quote(f"{ARCHIVE}/{place}")) for name, place in objects.items()],
    )


def _copy(archive: Archive, run: ArchivedRun, to: Path) -> None:
    objects = [(run.object(table), limits.TABLE) for table in TABLES]
    for name, most in [*objects, (run.prefix + MANIFEST, limits.MANIFEST)]:
        path = to / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(archive.store.read(name, most))


def write(
    places: Sequence[str],
    folder: Path,
    trusted: frozenset[str] = frozenset(),
    require: Trust = Trust.EPHEMERAL,
) -> Path:
    """Write the site into a new folder, and return its first page."""
    refuse_filled(folder)
    around = {folder.resolve(), *folder.resolve().parents}
    if signed_around(folder) or any(Path(place).resolve() in around for place in places):
        raise UsageError(
            f"{folder} is inside a run or an archive, which must not change",
            "give --out another folder.",
        )
    runs = gather(places, folder / ARCHIVE, trusted, require)
    for run in runs:
        write_text(folder / PAGES / run.run_id / HTML, page(run))
    return write_text(folder / INDEX, index(runs))


def page(run: SiteRun) -> str:
    records = run.records
    contexts = {
        "decision": {"run": run, "tally": tally_of_controls(records)},
        "faster": gather_speedups(records, MARGIN),
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


def _build_payments(runs: Sequence[SiteRun]) -> TableBlock:
    rows = []
    for run, p in payments(runs):
        against, machine = ", ".join(p.used[1]), f"{p.gpu or 'a CPU'}, {run.versions}"
        rows.append((p.what, p.regime, Strong(p.sentence), against or "–", machine, run.link))
    return TableBlock("Pays", ("op", "regime", "decision", "against", "on", "run"), rows)


def _build_decisions(runs: Sequence[SiteRun]) -> TableBlock:
    rows = []
    for run in sorted(runs, key=lambda run: not run.is_paired):
        for d in run.decisions:
            why = "; ".join(d.reasons) if d.min_length is None else ""
            machine = f"{d.gpu or 'a CPU'}, {d.versions}"
            decision = Strong(d.sentence)
            rows.append(
                (d.op, Name(d.candidate), d.regime, decision, why or "–", machine, run.link)
            )
    columns = ("op", "candidate", "regime", "decision", "why", "on", "run")
    return TableBlock("Decisions", columns, rows)


def index(runs: Sequence[SiteRun]) -> str:
    return html.render(
        "site.html.j2",
        ("site.js",),
        html.rows([]),
        runs=runs,
        pays=_build_payments(runs),
        decisions=_build_decisions(runs),
        boards=leaderboards(run.records for run in runs if not run.missed),
        keys=sorted({run.keyid for run in runs if run.trust is not Trust.EPHEMERAL}),
        devices=sorted({run.device for run in runs}),
    )
