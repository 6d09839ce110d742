"""Check the kernels of one file on a few shapes (`nsabench check`).

Cases are measured as in the main pass of a run. But no control shows that the checks work, and
nothing is signed, so the results are not verdicts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex

from pydantic import ValidationError

from nsabench import ops, registry
from nsabench.channel import Step
from nsabench.errors import UsageError
from nsabench.model.case import Case, RatioCI, Timing
from nsabench.model.job import Job
from nsabench.model.log import Log, WriterSession
from nsabench.model.measurement import Ceilings, Observation
from nsabench.model.plan import Device, ImplementationInfo, Plan, PlannedCase
from nsabench.model.record import Record
from nsabench.model.source import Source
from nsabench.model.vocabulary import Direction, DType, Role, Runs, Status
from nsabench.planning.narrow import matches_any
from nsabench.registry.loading import GIVE_A_FILE
from nsabench.running import planner
from nsabench.running.clients import CheckerClient, WorkerClient
from nsabench.running.executor import Executor
from nsabench.running.loop import run_job
from nsabench.running.policy import plan_main
from nsabench.sources import digest_of, read
from nsabench.verdicts.results import assess

TIMING = Timing(stopping=RatioCI(width=0.02, min_rounds=10, max_rounds=100, budget_s=1.0))
TIMEOUT_S = 30.0
SEED = 20260101


@dataclass(frozen=True)
class CheckRequest:
    file: Path
    device: Device
    op: str = ""  # empty: all ops of the file
    shapes: tuple[str, ...] = ()  # such as "N=64,L=1024"; empty: the op's own
    dtype: DType = DType.FLOAT16
    direction: Direction = Direction.FORWARD
    only: tuple[str, ...] = ()  # patterns on the names of candidates; empty: all
    ops_file: Path | None = None
    sandboxed: bool = True
    timeout_s: float = TIMEOUT_S


@dataclass(frozen=True)
class CheckResult:
    """The result of one implementation on one case. `baseline` is the best valid baseline."""

    case: Case
    record: Record
    baseline: Record | None
    traceback: str
    printed: str  # output of all kernels of the case, since they share a process

    @property
    def log(self) -> str:
        return "\n".join(filter(None, (self.printed.rstrip(), self.traceback)))


def check_file(
    request: CheckRequest, on_found: Callable[[Step], None] = lambda step: None
) -> list[CheckResult]:
    """Measure the implementations of the file and the baselines, in the same rounds.

    `on_found` receives a step for each status that an implementation of the file gets for the first
    time, before the implementation is timed.
    """
    sources = registry.sources(request.file, request.ops_file)
    installed: list[ImplementationInfo] = []
    told: list[Step] = []

    def on_step(step: Step) -> None:
        is_own = all(step.implementation != info.name for info in installed)
        if is_own and step.phase in list(Status) and step not in told:
            told.append(step)  # the implementation may get the same status in another case
            on_found(step)

    client = WorkerClient(
        request.device,
        request.file,
        sources=sources,
        ops_file=request.ops_file,
        sandboxed=request.sandboxed,
        on_step=on_step,
    )
    others = planner.without_file(request.file, sources)
    with closing(replace(client, kernels=None, sources=others)) as clean:
        installed += clean.discover()
    with (
        closing(CheckerClient(request.device, request.ops_file)) as checker,
        closing(replace(client, mailbox=checker.mailbox)) as worker,
    ):
        infos = planner.join_file(request.file, sources, installed, worker.discover())
        tried = plan(request, infos, sources)
        return list(_measure(tried, Executor(tried, worker, checker)))


def _measure(plan: Plan, executor: Executor) -> Iterator[CheckResult]:
    session = WriterSession(
        run_id=plan.run_id,
        plan_sha256=plan.sha256,
        environment_sha256="",
        started=plan.created,
        described=executor.worker.describe(),
        ceilings=Ceilings(),
    )
    log = Log([session])
    printed: dict[str, str] = {}
    traces: dict[tuple[str, str], str] = {}

    def keep_printed(job: Job, observations: Sequence[Observation], text: str) -> None:
        printed[job.case.id] = text
        traces.update({(job.case.id, o.implementation): o.traceback for o in observations})

    while (job := next(plan_main(plan, log), None)) is not None:
        run_job(job, executor, log.extend, keep_printed)
    records = {r.key: r for r in assess(plan, log).results().records}
    for planned in plan.cases:
        for name in planned.implementations:
            record = records[planned.id, name]
            if record.role is Role.CANDIDATE:
                best = records.get((planned.id, record.best_baseline))
                output = traces.get(record.key, ""), printed.get(planned.id, "")
                yield CheckResult(planned.case, record, best, *output)


def plan(
    request: CheckRequest, infos: Sequence[ImplementationInfo], sources: Mapping[str, str]
) -> Plan:
    """Plan the cases of the file's ops. Baselines are included if a candidate can be timed."""
    own = Source.from_digest(request.file, digest_of(request.file, sources))
    mine = [i for i in infos if i.source == own and i.role is Role.CANDIDATE]
    tried = [
        i for i in mine if request.op in ("", i.op) and matches_any(i.name, request.only or ("*",))
    ]
    if mine and not tried and request.only:
        raise UsageError(
            f"--only: {request.file} has no candidate named {' or '.join(request.only)}",
            f"it has {', '.join(sorted({i.name for i in mine}))}.",
        )
    if not tried:
        what = f"nothing of the op {request.op}" if request.op else "no candidate"
        names = ", ".join(sorted({i.op for i in mine}))
        raise UsageError(
            f"{request.file} implements {what}",
            f"it implements {names}." if names else "mark a function with @implementation(op=…).",
        )
    cases = []
    op_names = dict.fromkeys(i.op for i in tried)
    for op_name in op_names:
        measured = [i for i in tried if i.op == op_name]
        if any(Runs.timed(i.devices, request.device) for i in measured):
            measured += [i for i in infos if i.role is Role.BASELINE]
        for case in _plan_cases(request, op_name):
            beside = tuple(i.name for i in measured if i.concerns(case))
            cases.append(PlannedCase(id=case.id, case=case, implementations=beside))
    return Plan(
        run_id=f"check-{token_hex(6)}",
        created=datetime.now(UTC).replace(microsecond=0),
        device=request.device,
        kernels=str(request.file),
        kernels_sha256=digest_of(request.file, sources),
        ops=str(request.ops_file) if request.ops_file else "",
        ops_sha256=digest_of(request.ops_file, sources),
        sources=dict(sources),
        sandboxed=request.sandboxed,
        matrices=[],
        implementations=[i for i in infos if i.op in op_names],
        cases=cases,
    )


def refuse_unusable(request: CheckRequest) -> None:
    """Raise `UsageError` for an unusable file, op or shape, before any process is started."""
    read(request.file, GIVE_A_FILE)
    for text in request.shapes:
        _read_sizes(text)
    if request.op:
        list(_plan_cases(request, request.op))


def _read_sizes(text: str) -> dict[str, str]:
    try:
        return dict(part.split("=") for part in text.replace(" ", "").split(","))
    except ValueError:
        raise UsageError(f"--shape {text!r} is not a list of sizes", "write N=64,L=1024.") from None


def _plan_cases(request: CheckRequest, op_name: str) -> Iterator[Case]:
    op = ops.get(op_name, "--op" if request.op else str(request.file))
    own = op.check_shapes.get(request.device, ())
    form = ",".join(f"{size}=…" for size in op.shape_model.model_fields)
    remedy = f"give a shape of {op_name}: --shape {own[0] if own else form}."
    shapes = request.shapes or own
    if not shapes:
        raise UsageError(f"the op {op_name} has no shapes to check on {request.device}", remedy)
    if request.direction not in op.directions:
        raise UsageError(f"the op {op_name} has no {request.direction}", "leave out --direction.")
    for text in shapes:
        try:
            shape = op.shape_model.model_validate(_read_sizes(text))
        except ValidationError as error:
            flaws = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
            what = "; ".join(flaw.removeprefix(": ") for flaw in flaws)
            raise UsageError(f"--shape {text} does not fit {op_name}: {what}", remedy) from None
        yield Case(
            op=op.name,
            shape=shape.model_dump(),
            dtype=request.dtype,
            direction=request.direction,
            distribution=op.distributions[0],
            timeout_s=request.timeout_s,
            seed=SEED,
            timing=TIMING,
        )
