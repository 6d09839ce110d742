"""Fill in the figures of the pages from the archive of published runs.

A page holds blocks such as

    <!-- results: break-even op=nsa_attention -->
    <!-- /results -->

`Published.fill` writes the results of the newest run of the op and direction between the two marks.
All figures come from the archive.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import groupby, product
from pathlib import Path

from nsabench import labels
from nsabench.checks.cases import best_baseline, by_case
from nsabench.checks.roofline import SLOW
from nsabench.evidence.archive import Archive, ArchivedRun
from nsabench.evidence.manifest.statement import Trust
from nsabench.model.record import Record
from nsabench.model.vocabulary import Direction, Pays, Reference, Regime, Role, Status, Verdict
from nsabench.output.report import payment_chart
from nsabench.signing import keys
from nsabench.verdicts import break_even
from nsabench.verdicts.break_even import BreakEven

BLOCK = re.compile(r"(<!-- results: ([\w-]+)((?: [\w-]+=\S+)*) -->\n).*?(<!-- /results -->)", re.S)
RESULTS = Path(__file__).parent / "results"
PAGES = [Path(__file__).parents[1] / "README.md", *sorted(RESULTS.glob("*.md"))]
CALLED = {
    Regime.DEVICE: "on the device",
    Regime.QUEUE: "called from Python",
    Regime.GRAPH: "in a CUDA graph",
}
NEAR = 0.05  # ratios that are nearer to 1 are printed with a third decimal
# Colours that can be read on a light and on a dark page.
STYLE = """<style>svg{color:#57606a;--accent:#0969da;--best:#bc4c00}
@media(prefers-color-scheme:dark){svg{color:#8b949e;--accent:#58a6ff;--best:#f0883e}}</style>"""


class Published:
    """The runs of an archive. `charts` has the charts of the filled pages, as SVG by path.

    Raises `ValueError` if a run is not sound, or not signed by a key beside the archive.
    """

    def __init__(self, archive: Path, images: Path) -> None:
        self._archive = Archive(str(archive))
        self._images = images
        self.charts: dict[Path, str] = {}
        publics = [key for path in archive.parent.glob("*.pub") for key in keys.read_publics(path)]
        trusted = frozenset(map(keys.keyid_of, publics))
        survey = self._archive.survey(trusted, Trust.PINNED)
        if survey.broken or survey.stray:
            raise ValueError(f"{archive}: {survey.broken or f'{survey.stray} stray files'}")
        self.runs = sorted(survey.sound, key=lambda run: run.predicate.signed)

    @cached_property
    def newest(self) -> dict[tuple[str, Direction], tuple[ArchivedRun, list[Record]]]:
        """For each op and direction, the newest run that measured it, and the records of it."""
        newest = {}
        for run in self.runs:
            records = self._archive.records(run)
            for what in {(r.op, r.direction) for r in records}:
                newest[what] = run, [r for r in records if (r.op, r.direction) == what]
        return newest

    def sources(self, op: str) -> list[ArchivedRun]:
        """Return the runs from which the figures of an op come, the oldest first."""
        return [run for run in self.runs if any(self._is_from(run, op, d) for d in Direction)]

    def records(self, op: str, **traits: str) -> list[Record]:
        """Return the records of an op with the given traits, the shortest case first."""
        found = [
            r
            for (name, _), (_, records) in self.newest.items()
            for r in records
            if name == op and all(str(getattr(r, name)) == value for name, value in traits.items())
        ]
        if not found:
            raise ValueError(f"no published run measures {op} with {traits}")
        order = list(Direction)
        return sorted(
            found,
            key=lambda r: (
                *(r.mode, order.index(r.direction)),
                *(r.shape.get("B", 0), r.length, r.case_id),
            ),
        )

    def fill(self, page: Path) -> str:
        """Return the text of a page, with its blocks filled in."""

        def write(match: re.Match[str]) -> str:
            start, name, options, end = match.groups()
            given = dict(option.split("=", 1) for option in options.split())
            return "\n".join([start.rstrip("\n"), *BLOCKS[name](self, page, **given), end])

        return BLOCK.sub(write, page.read_text())

    def _is_from(self, run: ArchivedRun, op: str, direction: Direction) -> bool:
        return (op, direction) in self.newest and self.newest[op, direction][0] is run

    # --- blocks

    def list_runs(self, page: Path) -> Iterator[str]:
        yield from _head("run", "quoted for", "GPU", "versions", "commit", "cases", "records")
        for run in self.runs:
            predicate = run.predicate
            quoted = sorted(
                f"{op} {way}" for (op, way), (new, _) in self.newest.items() if new is run
            )
            machine = predicate.environment
            commit = next((c[:8] for c in machine.commits.values()), "")
            yield _row(
                f"`{run.run_id}`", ", ".join(quoted), machine.gpu or "", _versions(run), commit,
                f"{predicate.plan.cases}, shard {predicate.plan.shard}", f"{predicate.records}",
            )  # fmt: skip

    def name_source(self, page: Path, op: str) -> Iterator[str]:
        """Yield a line for each run: its GPU, its versions, its libraries, and those it lacks."""
        for run in self.sources(op):
            signed, gpu = run.predicate.signed, run.predicate.environment.gpu
            directions = [d for d in Direction if self._is_from(run, op, d)]
            records = [r for d in directions for r in self.newest[op, d][1]]
            there = {r.implementation for r in records if r.status is Status.OK}
            absent = {
                f"`{r.implementation}` ({r.reason.split(':')[0]})": None
                for r in records
                if r.implementation not in there and r.status is Status.UNSUPPORTED and r.package
            }
            lacks = f" Without {', '.join(absent)}." if absent else ""
            libraries = sorted(
                {
                    f"{r.package} {r.package_version}"
                    for r in records
                    if r.implementation in there and r.package_version
                }
            )
            lacks = (f" Libraries: {', '.join(libraries)}." if libraries else "") + lacks
            said = ", ".join(map(str, directions))
            versions = f"{gpu}, {_versions(run)}, {signed:%Y-%m-%d}"
            yield f"- {said}: {versions}, run `{run.run_id}`.{lacks}"

    def list_break_even_lengths(self, page: Path, op: str) -> Iterator[str]:
        """Yield a table: a row for each head layout and direction, a column for each regime."""
        answers = break_even.decide(self.records(op))
        regimes = [regime for regime in CALLED if any(a.regime is regime for a in answers)]
        yield from _head("heads", "direction", *(CALLED[regime] for regime in regimes))
        rows: dict[tuple[str, Direction], dict[Regime, str]] = {}
        for answer in answers:
            said = _say(answer) + _name_unproven(answer)
            rows.setdefault((answer.heads, answer.direction), {})[answer.regime] = said
        for (heads, direction), cells in rows.items():
            yield _row(heads, direction, *(cells.get(regime, "") for regime in regimes))

    def say_break_even(
        self, page: Path, op: str, heads: str, regime: str = "device"
    ) -> Iterator[str]:
        answers = [
            a for a in break_even.decide(self.records(op)) if (a.heads, a.regime) == (heads, regime)
        ]
        name = op.replace("_", " ").replace("nsa", "NSA")
        where = f"On an {answers[0].gpu}, {name} with {heads} heads"
        called = CALLED[Regime(regime)]
        won = [a for a in answers if a.answer is Pays.FROM]
        if won:
            said = ", ".join(f"{a.direction} **{_say(a)}**{_name_unproven(a)}" for a in won)
            others = " or ".join(f"`{o}`" for o in sorted({o for a in won for o in a.used[1]}))
            yield (
                f"{where} is faster {called} than the best dense attention of the run ({others}): "
                f"{said}."
            )
        for a in answers:
            if a not in won:
                yield f"{where}, {a.direction}: faster than dense attention {called}: {_say(a)}."

    def count_verdicts(self, page: Path, op: str, candidate: str, **traits: str) -> Iterator[str]:
        """Yield a line for each direction and regime: the verdicts and ratios of a candidate."""
        records = self.records(op, implementation=candidate, **traits)
        for direction, (regime, called) in product(Direction, CALLED.items()):
            compared = [
                (r, c)
                for r in records
                if r.direction is direction and (c := r.compared(regime)) and c.verdict
            ]
            if not compared:
                continue
            counts = Counter(c.verdict for _, c in compared)
            verdicts = ", ".join(f"{counts[v]} {v}" for v in Verdict if counts[v])
            unproven = [r for r, _ in compared if r.unproven]
            checks = _list_unproven(unproven)
            proviso = f", {len(unproven)} on an unproven check ({checks})" if unproven else ""
            ratios = [c.ratio for _, c in compared if c.ratio]
            yield (
                f"- {direction.capitalize()} {called}: {verdicts} of {len(compared)} cases"
                f"{proviso}. The ratio is {min(ratios):.2f} to {max(ratios):.2f}."
            )

    def list_ratios(
        self, page: Path, op: str, against: str = "baseline", **traits: str
    ) -> Iterator[str]:
        """Yield a table: for each case the fastest candidate, its best competitor, the ratio."""
        records, reference = self.records(op, **traits), Reference(against)
        regimes = [
            regime
            for regime in CALLED
            if any((c := r.compared(regime, reference)) and c.ratio for r in records)
        ]
        shared = labels.constant(records)[op]
        yield from _head(" ".join(shared), *(CALLED[regime] for regime in regimes))
        for _, group in groupby(records, key=lambda r: r.case_id):
            case = list(group)
            cells = [_describe_best(case, regime, reference) for regime in regimes]
            if any(cells):
                yield _row(_label(case[0], shared), *cells)

    def list_all_times(self, page: Path, op: str, candidate: str, **traits: str) -> Iterator[str]:
        """Yield a table of times over the candidate's: a row an implementation, a column a case.

        If a baseline takes over `SLOW` times as long as the best one, its cell is empty.
        """
        right = [
            r
            for r in self.records(op, **traits)
            if r.role in (Role.CANDIDATE, Role.BASELINE) and r.status is Status.OK and r.median_ms
        ]
        shared = labels.constant(right)[op]
        cases = {r.case_id: r for r in right if r.implementation == candidate}
        yield from _head(" ".join(shared), *(_label(r, shared) or "time" for r in cases.values()))
        yield _row(f"`{candidate}`", *(_time(r.median_ms or 0.0) for r in cases.values()))
        times = {
            (r.implementation, r.case_id): r.median_ms or 0.0
            for case in by_case(right).values()
            for r in case
            if not _is_far_behind(r, best_baseline(case, alongside=True))
        }
        for other in sorted({name for name, case in times if case in cases} - {candidate}):
            ratios = [
                f"{times[other, case] / times[candidate, case]:.2f}"
                if (other, case) in times
                else ""
                for case in cases
            ]
            yield _row(f"`{other}`", *ratios)

    def draw_chart(
        self, page: Path, op: str, heads: str, direction: str, regime: str = "device"
    ) -> Iterator[str]:
        """Draw the time of an op and of its best alternative by length. Yield the picture."""
        answer = next(
            a
            for a in break_even.decide(self.records(op))
            if (a.heads, a.direction, a.regime) == (heads, direction, regime)
        )
        [chart] = payment_chart.charts([answer], self.records(op))
        path = self._images / f"{op}-{heads.replace('/', '-')}-{direction}-{regime}.svg"
        self.charts[path] = str(chart.draw()).replace(">", f">{STYLE}", 1)
        called = CALLED[answer.regime]
        alt = f"Time of {op} {direction} {called} and of the best dense attention, by {answer.axis}"
        yield f"![{alt}]({Path(os.path.relpath(path, page.parent)).as_posix()})"
        others = " or ".join(f"`{o}`" for o in answer.used[1])
        yield f"*{heads} heads, {direction}; the best dense attention is {others}.*"


def read_archive() -> Published:
    return Published(RESULTS / "archive", RESULTS / "charts")


def fill_pages() -> None:
    published = read_archive()
    for page in PAGES:
        page.write_text(published.fill(page))
    for path, svg in published.charts.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(svg)


BLOCKS: dict[str, Callable[..., Iterator[str]]] = {
    "runs": Published.list_runs,
    "source": Published.name_source,
    "break-even-lengths": Published.list_break_even_lengths,
    "break-even": Published.say_break_even,
    "verdicts": Published.count_verdicts,
    "ratios": Published.list_ratios,
    "times": Published.list_all_times,
    "chart": Published.draw_chart,
}


def _versions(run: ArchivedRun) -> str:
    machine = run.predicate.environment
    return f"torch {machine.torch}, Triton {machine.triton}, driver {machine.driver}"


def _say(answer: BreakEven) -> str:
    if answer.answer is Pays.FROM:
        last = ", the greatest tested" if answer.length == answer.greatest else ""
        return f"from {answer.axis} = {answer.length:,}{last}"
    if answer.answer is Pays.NO:
        return f"not up to {answer.axis} = {answer.greatest:,}"
    return "not decided"


def _is_far_behind(record: Record, best: Record | None) -> bool:
    if record.role is not Role.BASELINE or best is None:
        return False
    return (record.median_ms or 0.0) > SLOW * (best.median_ms or 0.0)


def _name_unproven(answer: BreakEven) -> str:
    checks = _list_unproven(t.record for t in answer.tested if t.length >= (answer.length or 0))
    if answer.answer is not Pays.FROM or not checks:
        return ""
    return f" (on an unproven check: {checks})"


def _list_unproven(records: Iterable[Record]) -> str:
    return " or ".join(sorted({f"`{r.unproven}`" for r in records if r.unproven}))


def _describe_best(case: Sequence[Record], regime: Regime, reference: Reference) -> str:
    """Return a cell such as `nsa 0.48 ms; dense 1.52 ms; **3.17** [3.10, 3.24] faster`, or ""."""
    compared = [
        (r, c)
        for r in case
        if r.role is Role.CANDIDATE
        and r.status is Status.OK
        and (c := r.compared(regime, reference))
        and c.median_ms
        and c.ratio
    ]
    if not compared:
        return ""
    ours, best = min(compared, key=lambda pair: pair[1].median_ms or 0.0)
    assert best.ratio is not None and best.median_ms is not None
    timed = next(r for r in case if r.implementation == best.against).comparison(regime)
    named = f"`{ours.implementation}` {_time(best.median_ms)}"
    alone = " alone" if best.isolated_ms else ""
    other = f"`{best.against}` {_time(best.isolated_ms or timed.median_ms or 0.0)}{alone}"
    digits = 3 if abs(best.ratio - 1) < NEAR else 2
    interval = f" [{best.lo:.{digits}f}, {best.hi:.{digits}f}]" if best.lo and best.hi else ""
    verdict = f" {best.verdict}" if best.verdict else ""
    return f"{named}; {other}; **{best.ratio:.{digits}f}**{interval}{verdict}"


def _label(record: Record, shared: Sequence[str]) -> str:
    return " ".join(word for word in labels.words(record) if word not in shared)


def _time(ms: float) -> str:
    return f"{ms:.3g} ms" if ms >= 0.1 else f"{ms * 1000:.3g} µs"


def _head(*columns: str) -> Iterator[str]:
    yield _row(*columns)
    yield "|" + "---|" * len(columns)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
