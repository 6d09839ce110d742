"""What a threshold is decided on: one entry a candidate and case, from runs or from CSV tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from nsabench import labels, ops
from nsabench.checks import HARMLESS, proofs
from nsabench.checks.best_baseline import best_baseline
from nsabench.checks.series import by_case
from nsabench.machine.environment.pairs import belongs
from nsabench.model.plan import ImplementationInfo, Plan
from nsabench.model.record import Record
from nsabench.model.source import Source
from nsabench.model.vocabulary import MARGIN, Direction, Regime, Role, Status, Verdict
from nsabench.planning.narrow import ALL, Narrowed
from nsabench.verdicts import audit
from nsabench.verdicts.audit import table
from nsabench.verdicts.caution import beside
from nsabench.verdicts.objections import (
    ON_A_CPU,
    missed,
    without_controls,
    without_queue_controls,
)
from nsabench.verdicts.tables import read_records

# The sizes that stand for what a kernel may depend on, where an op has them.
AXES = {"heads": "H", "head dims": "D", "numbers of spans": "n_spans"}


@dataclass(frozen=True)
class Tested:
    """A candidate on a case. `speedup_lo`: lower end of the 95 % interval, None without one."""

    gpu: str
    combo: str
    op: str
    candidate: str
    length: int
    status: Status
    verdict: Verdict | None
    speedup_lo: float | None
    case: str
    label: str  # the case in words
    axes: Mapping[str, int] = field(default_factory=dict)
    run_id: str = ""
    axis: str = "L"  # the size that `length` is of
    source: str = ""  # of the candidate, as NAME@DIGEST; empty where it is not known
    # Of a status; or of a verdict that these runs have together and none of them alone.
    why: str = ""
    margin: float | None = None  # at which its run confirmed verdicts; None: none is known of
    regime: Regime = Regime.DEVICE
    caution: str = ""  # what to bear in mind beside the verdict
    unpaired: str = ""  # that its torch and its Triton are no pair


Machine = tuple[str, str]  # GPU and combo
Implementation = tuple[str, str]  # op as the run calls it, and name


@dataclass(frozen=True)
class Note:
    """What is worth saying of an implementation, and stops nothing. `op`: as in `Tested`."""

    op: str
    implementation: str
    sentence: str


@dataclass(frozen=True)
class InQueue:
    """What speaks against deciding in the regime `queue` alone. Empty texts: nothing does."""

    missed: str = ""
    of_op: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Evidence:
    """All that was tested, and why it may decide nothing; of_op: nothing for one op; in_queue:
    nothing in that regime.

    margin: as in `Tested`. rows: what was timed of candidates and baselines, on one machine.
    sources: where these come from, as in `Tested`.
    """

    tested: list[Tested]
    objections: list[str] = field(default_factory=list)
    of_op: Mapping[str, str] = field(default_factory=dict)
    margin: float | None = None
    machine: Machine = ("", "")
    rows: list[Record] = field(default_factory=list)
    sources: Mapping[Implementation, str] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    caveats: Mapping[str, list[str]] = field(default_factory=dict)  # of one op; they stop nothing
    where: tuple[str, ...] = ()  # the conditions that all its cases meet
    in_queue: InQueue = field(default_factory=InQueue)

    def against(self, op: str, regime: Regime = Regime.DEVICE) -> list[str]:
        """Why it may decide nothing for this op in this regime."""
        of_op = [self.of_op[op]] if op in self.of_op else []
        return [*self.objections, *of_op, *self._in(regime, op)]

    def _in(self, regime: Regime, op: str) -> list[str]:
        if regime is not Regime.QUEUE:
            return []
        return [o for o in (self.in_queue.missed, self.in_queue.of_op.get(op, "")) if o]

    def without_rows(self) -> Evidence:
        """What a decision needs where no other run is looked at beside it."""
        return replace(self, rows=[])


def of_run(folder: Path, narrowed: Narrowed = ALL) -> Evidence:
    """narrowed: what is asked for among its cases.

    Raises `UsageError` when the folder holds no plan or no readable records, when the op of its
    plan is not the one that is there, or when no case is asked for.
    """
    plan = Plan.read(folder / "plan.json")
    evidence = of_records(records_of(folder, narrowed), plan)
    return replace(evidence, where=(*plan.where, *narrowed.where))


def records_of(folder: Path, narrowed: Narrowed = ALL) -> list[Record]:
    """The records of a run, of the cases that are asked for. Raises as `of_run`."""
    records, plan = read_records(folder), Plan.read(folder / "plan.json")
    ops.refuse_other(plan)
    narrowed.refuse_unmet([planned.case for planned in plan.cases])
    wanted = {planned.id for planned in plan.cases if narrowed.wants(planned.case)}
    return [r for r in records if r.case_id in wanted]


def of_records(records: Sequence[Record], plan: Plan | None = None) -> Evidence:
    """The candidates among the records of one run, and what speaks against deciding from it.

    A threshold switches a forward on, so backward cases have no say in it. Of a merged run the
    records of each shard are held to the controls of that shard.
    """
    if plan is not None and plan.shards:
        own: dict[int, list[Record]] = {}
        for record in records:
            own.setdefault(plan.by_id[record.case_id].shard, []).append(record)
        alone = plan.model_copy(update={"shards": ()})
        return together([of_records(own[number], alone) for number in sorted(own)])
    records = [r for r in records if r.direction is Direction.FORWARD]
    sources = {(i.op, i.name): _source(plan, i) for i in plan.implementations} if plan else {}
    margin = plan.margin if plan else MARGIN
    queues = any(r.role is Role.CANDIDATE and r.compared(Regime.QUEUE) for r in records)
    return Evidence(
        [
            tested
            for r in records
            if r.role is Role.CANDIDATE
            for tested in _of_record(r, sources, margin, queues=queues)
        ],
        list(_objections(records)),
        without_controls(records),
        margin=margin,
        machine=_machine(records[0]) if records else ("", ""),
        rows=[
            replace(r, alongside=_is_alongside(r, plan))
            for r in records
            if r.role is not Role.CONTROL and r.median_ms
        ],
        sources=sources,
        caveats=_caveats(records),
        in_queue=InQueue(missed(records, Regime.QUEUE), without_queue_controls(records)),
        where=plan.where if plan else (),
    )


def together(parts: Sequence[Evidence]) -> Evidence:
    """The evidence of the shards of one plan, which parts no ladder, as that of one run."""
    first = parts[0]
    caveats: dict[str, list[str]] = {}
    for op, sentence in (
        (op, s) for part in parts for op, many in part.caveats.items() for s in many
    ):
        caveats.setdefault(op, [])
        if sentence not in caveats[op]:
            caveats[op].append(sentence)
    return replace(
        first,
        tested=[tested for part in parts for tested in part.tested],
        objections=list(dict.fromkeys(o for part in parts for o in part.objections)),
        of_op={op: why for part in parts for op, why in part.of_op.items()},
        machine=next((part.machine for part in parts if part.rows), first.machine),
        rows=[row for part in parts for row in part.rows],
        sources={key: source for part in parts for key, source in part.sources.items()},
        notes=list(dict.fromkeys(note for part in parts for note in part.notes)),
        caveats=caveats,
        in_queue=InQueue(
            "; ".join(dict.fromkeys(p.in_queue.missed for p in parts if p.in_queue.missed)),
            {op: why for part in parts for op, why in part.in_queue.of_op.items()},
        ),
    )


def _source(plan: Plan, info: ImplementationInfo) -> str:
    """A file names its digest by itself; of a distribution the plan holds it."""
    digest = plan.sources.get(info.source)
    if info.source.is_file or not digest:
        return str(info.source)
    return str(Source.of_digest(Path(info.source), digest))


def _machine(record: Record) -> Machine:
    combo = f"torch {record.torch}, triton {record.triton}"
    if record.cuda:
        combo += f", CUDA {record.cuda}"
    return record.gpu_name, combo


def _of_record(
    record: Record, sources: Mapping[Implementation, str], margin: float, *, queues: bool
) -> Iterator[Tested]:
    """In the regime of its samples, and in the queue, where the run has it and so has the case."""
    gpu, combo = _machine(record)
    own = Tested(
        gpu=gpu,
        combo=combo,
        op=record.op,
        candidate=record.implementation,
        length=record.length,
        status=record.status,
        verdict=None,
        speedup_lo=None,
        case=record.case_id,
        label=labels.named(record),
        axes=_axes(record.shape),
        run_id=record.run_id,
        axis=ops.get(record.op).length_axis,
        source=sources.get((record.op, record.implementation), ""),
        why=record.reason,
        margin=margin,
        unpaired=belongs(record.torch, record.triton),
    )
    regimes = [record.regime]
    if queues and record.may_be_judged_in(Regime.QUEUE):
        regimes.append(Regime.QUEUE)
    for regime in regimes:
        found = record.compared(regime)
        yield replace(
            own,
            regime=regime,
            verdict=found.verdict if found else None,
            speedup_lo=found.lo if found else None,
            why=own.why or (found.reason if found and regime is Regime.QUEUE else ""),
            caution=beside(record, regime),
        )


def _is_alongside(record: Record, plan: Plan | None) -> bool:
    """Whether the matrix left it out, and it ran for a control that wraps it."""
    planned = plan.by_id.get(record.case_id) if plan else None
    return planned is not None and record.implementation in planned.alongside


def _axes(shape: Mapping[str, int]) -> dict[str, int]:
    return {axis: shape[size] for axis, size in AXES.items() if size in shape}


def _objections(records: Sequence[Record]) -> Iterable[str]:
    if any(r.device != "cuda" for r in records):
        yield ON_A_CPU
    if controls := missed(records, None):
        yield controls


def _caveats(records: Sequence[Record]) -> dict[str, list[str]]:
    """What the checks behind the verdicts of each op leave unproven."""
    lacking = proofs.unproven(records)
    return {
        op: [s for _, s in proofs.by_way([lack for lack in lacking if lack.group.op == op])]
        for op in sorted({r.op for r in records if r.role is Role.CANDIDATE})
    }


def of_tables(paths: Sequence[Path], gpu: str) -> Evidence:
    """CSV tables from elsewhere, after the audit: what is graver than a note is an objection.

    They state no interval, so their ratio of medians stands for its lower end.

    Raises `UsageError` when one is no table of timings or the device is not known.
    """
    tested, objections = [], []
    names = Counter(path.name for path in paths)
    for path in paths:
        name = path.name if names[path.name] == 1 else str(path)
        for finding in audit.audit_csv(path, gpu):
            if finding.effect not in HARMLESS:
                where = f"{finding.case_id}: " if finding.case_id else ""
                objections.append(f"{name}: {finding.check}: {where}{finding.sentence}")
        rows = [r for r in table.read(path).rows() if r.direction is Direction.FORWARD]
        cases = by_case(rows)
        for row in (r for r in rows if r.role is Role.CANDIDATE):
            best = best_baseline(cases[row.case_id])
            ratio = (
                best.median_ms / row.median_ms
                if best and best.median_ms and row.median_ms
                else None
            )
            tested.append(
                Tested(
                    gpu=gpu,
                    combo="as in the table",
                    op=row.op,
                    candidate=row.implementation,
                    length=row.length,
                    status=row.status if row.median_ms else Status.SKIPPED,
                    verdict=Verdict.FASTER if ratio and ratio > 1 else Verdict.SLOWER,
                    speedup_lo=ratio,
                    case=row.case_id,
                    label=row.case_id,
                    axes=_axes(row.shape),
                    run_id=name,
                )
            )
    return Evidence(tested, objections)
