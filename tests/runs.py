"""Make runs for tests: made-up timings in a real plan, log and tables, with real checks and
verdicts."""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache

import numpy as np
import pyarrow.parquet as pq
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from nsabench.machine.environment.collect import collect
from nsabench.machine.environment.identity import machine_of
from nsabench.machine.environment.model import Gpu
from nsabench.model.case import Case
from nsabench.model.description import Described
from nsabench.model.job import Death
from nsabench.model.log import Begun, Ended, Log, Observed, WriterSession
from nsabench.model.measurement import Bursts, Ceilings, Conditions, Observation, Samples
from nsabench.model.plan import WHOLE, ImplementationInfo, LibraryRelease, Plan, PlannedCase
from nsabench.model.record import Comparison, Record
from nsabench.model.source import Source
from nsabench.model.vocabulary import (
    MARGIN,
    Direction,
    DType,
    Kind,
    Purpose,
    Reference,
    Regime,
    Role,
    Runs,
    Status,
)
from nsabench.planning.shards import canary, share
from nsabench.running.folder import RunFolder
from nsabench.running.log import LogFile
from nsabench.running.policy import make_job
from nsabench.signing import Signer
from nsabench.verdicts.attempts import CaseState, state_of
from nsabench.verdicts.results import assemble
from nsabench.verdicts.tables import write_tables

OP = "selection_rows"


def confirmation(case_id, observations=(), reason=""):
    """Return the state of a case after its confirmation pass."""
    return CaseState(Purpose.CONFIRMATION, case_id, list(observations), {}, reason=reason)


def isolated(case_id, observations=(), reason=""):
    """Return the state of a case after its isolated pass."""
    return CaseState(Purpose.ISOLATED, case_id, list(observations), {}, reason=reason)


QUEUE_CONTROLS = (("needless_python", "host"), ("hidden_in_a_thread", "burst"))
LENGTHS = (64, 128, 256, 512)
SHAPES = ((256, 4, 64), (256, 8, 128))  # N, H, D


@dataclass(frozen=True)
class Made:
    """What a made run holds. ratio: the baseline's time over the candidate's, by length."""

    run_id: str = "20260101T000000Z-abc123"
    gpu: str = "NVIDIA H200"
    environment_gpu: str | None = None  # in environment.json; None: `gpu`
    torch: str = "2.11.0"
    triton: str = "3.6.0"
    lengths: tuple[int, ...] = LENGTHS
    shapes: tuple[tuple[int, int, int], ...] = SHAPES
    ratio: Callable[[int], float] = lambda length: 0.5 if length < 256 else 1.5
    base_ms: float = 0.2  # of the baseline at length 64
    samples: int = 20
    status: Callable[[int], Status] = lambda _: Status.OK
    control_caught: bool = True
    control_crashed: bool = False
    noise: float = 0.005
    seed: int = 0
    implementations: tuple[str, ...] = ("mine",)
    flex_ms: Callable[[int], float] | None = None  # the time of a second baseline, by length
    flex_kind: Kind | None = None
    shard: str = WHOLE
    margin: float = MARGIN
    source: str = "x"  # of the candidates
    kind: Kind | None = None  # of `sdpa_gqa`
    origin: LibraryRelease = field(default_factory=LibraryRelease)  # of `sdpa_gqa`
    sources: Mapping[str, str] = field(default_factory=dict)
    created: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    ceilings: Ceilings = field(default_factory=Ceilings)
    conditions: Callable[[int], Conditions] = lambda _: Conditions()
    # The ratio in the queue, by length; None: no bursts.
    queue_ratio: Callable[[int], float] | None = None
    host_us: float = 40.0
    launches: int | None = None
    queue_caught: bool = True
    # Ratio of an alternative's time to the candidate's, by length; None: no alternative. In the
    # queue the ratio is half of it.
    dense_ratio: Callable[[int], float] | None = None
    canary_ms: float = 0.2  # in a shard: the time of each implementation of the canary
    canary_lost: str = ""  # why the process that measured the canary died; empty: it did not
    canary_crashes: bool = False  # whether the last implementation of the canary crashes


def info(name, role, **more):
    known = {"op": OP, "devices": (Runs.CUDA,), "source": "x"}
    return ImplementationInfo(name=name, role=role, **{**known, **more})


def make_plan(made):
    infos = [info(name, Role.CANDIDATE, source=made.source) for name in made.implementations]
    infos.append(info("sdpa_gqa", Role.BASELINE, kind=made.kind, origin=made.origin))
    if made.flex_ms:
        infos.append(info("flex_attention", Role.BASELINE, kind=made.flex_kind))
    if made.dense_ratio:
        infos.append(info("dense", Role.ALTERNATIVE, computes="selection_varlen"))
    infos.append(info("zero_output", Role.CONTROL, caught_by="parity"))
    controls = QUEUE_CONTROLS if made.queue_ratio else ()
    infos += [info(name, Role.CONTROL, caught_by=caught_by) for name, caught_by in controls]
    cases = [
        Case(
            op=OP,
            shape={"N": n, "H": h, "D": d, "Dv": d, "L": length},
            dtype=dtype,
            direction=Direction.FORWARD,
            distribution="dense",
            timeout_s=60,
            seed=1,
        )
        for dtype in (DType.FLOAT16, DType.BFLOAT16)
        for n, h, d in made.shapes
        for length in made.lengths
    ]
    names = tuple(i.name for i in infos)
    planned = [PlannedCase(id=case.id, case=case, implementations=names) for case in cases]
    is_whole = made.shard == WHOLE
    return Plan(
        run_id=made.run_id,
        created=made.created,
        device="cuda",
        shard=made.shard,
        margin=made.margin,
        sources=dict(made.sources),
        whole="" if is_whole else " ".join(case.id for case in planned),
        canary=None if is_whole else canary(planned, infos, "cuda"),
        matrices=[],
        implementations=infos,
        cases=share(planned, made.shard),
    )


def change_infos(plan, change, **fields):
    """Return the plan with the fields `change(info)` in each implementation, and `fields` of its
    own."""
    infos = [info.model_copy(update=change(info)) for info in plan.implementations]
    return plan.model_copy(update={"implementations": infos, **fields})


def from_sources(plan, candidates="mine.py", others="pkg"):
    """Return the plan with the candidates from one source and all others from another."""
    sources = {candidates: "a", others: "b"}
    return change_infos(
        plan,
        lambda info: {"source": candidates if info.role is Role.CANDIDATE else others},
        sources=sources,
    )


def retimed(planned, **timing):
    """Return a planned case with other fields of its timing."""
    timing = planned.case.timing.model_copy(update=timing)
    case = Case(**{**planned.case.model_dump(), "timing": timing})
    return planned.model_copy(update={"case": case, "id": case.id})


SIGNER = Signer(Ed25519PrivateKey.generate(), ephemeral=True)


def make_run(folder, made=None, *, signer=SIGNER, change=lambda plan: plan, observe=None):
    """Make a run folder that is complete except for the signed manifest.

    signer: signs the log. change: changes the plan. observe: yields the observations of a case,
    instead of those of `made`.
    """
    made = made or Made()
    folder.mkdir(parents=True, exist_ok=True)
    plan = change(make_plan(made))
    plan.write(folder / "plan.json")
    (folder / "environment.json").write_text(
        _environment(made.environment_gpu or made.gpu, made.torch, made.triton)
    )
    (folder / "logs").mkdir(exist_ok=True)
    (folder / "logs" / f"{plan.cases[0].id}.log").write_text("a line\n")
    described = Described(
        software={"torch": made.torch, "triton": made.triton, "torch_cuda": "13.0"},
        device={"type": "cuda", "name": made.gpu, "compute_capability": "9.0"},
    )
    with closing(LogFile(folder / "log.jsonl")) as log:
        log.sign_as(signer)
        log.append(session_of(plan, described, folder, made.ceilings))
        rng = np.random.default_rng(made.seed)
        for planned in plan.cases:
            found = observe(planned) if observe else observations_of(planned, made, rng)
            observations = list(found)
            conditions = made.conditions(planned.case.shape.get("L", 0))
            add_attempt(log, plan, Purpose.MAIN, planned.id, observations, conditions)
        if plan.canary is not None:
            same = np.random.default_rng(0)
            times = [timed(n, made.canary_ms, made, same) for n in plan.canary.implementations]
            if made.canary_crashes:
                name = times[-1].implementation
                times[-1] = Observation(
                    implementation=name, status=Status.CRASHED, reason="SIGSEGV"
                )
            lost = made.canary_lost
            death = Death(status=Status.CRASHED, reason=lost) if lost else None
            add_attempt(log, plan, Purpose.CANARY, plan.canary.id, times, death=death)
    results = assemble(plan.run_id, RunFolder(folder).parts())
    write_tables(results, plan.run_id, folder)
    return folder


def session_of(plan, described, folder=None, ceilings=None):
    """Return the first entry of a log. folder: of the run, if it has an environment.json."""
    return WriterSession(
        run_id=plan.run_id,
        plan_sha256=plan.sha256,
        environment_sha256=RunFolder(folder).hash_environment() if folder else "",
        started=datetime(2026, 1, 1, tzinfo=UTC),
        machine=machine_of(plan.run_id, described),
        described=described,
        ceilings=ceilings or Ceilings(),
    )


def add_attempt(log, plan, purpose, case_id, observations=(), conditions=None, death=None):
    """Add the next attempt to measure a case, and its end. In a later pass, the first attempt
    measures the implementations of `observations` or, without any, all of the case."""
    planned = plan.case_or_canary(case_id)
    held = log.log if isinstance(log, LogFile) else log
    names = [o.implementation for o in observations] or planned.implementations
    job = make_job(planned.case, state_of(plan, held, purpose, planned, names), plan.sources)
    own = {o.implementation: o.model_copy(update={"attempt": job.attempt}) for o in observations}
    observed = [] if death else [Observed(observation=own[name]) for name in job.implementations]
    add = log.append if isinstance(log, LogFile) else log.extend
    add(
        Begun(job=job),
        *observed,
        Ended(conditions=conditions or Conditions(), death=death, wall_s=0.1),
    )


def log_of(plan, **given):
    """Return a log in memory that holds only a session."""
    described = given.pop("described", Described(software={}, device={"type": "cuda"}))
    return Log([session_of(plan, described, **given)])


def observations_of(planned, made, rng):
    length = planned.case.shape["L"]
    base = made.base_ms * length / 64
    status = made.status(length)
    for name in made.implementations:
        if status is Status.OK:
            queued = base / made.queue_ratio(length) if made.queue_ratio else None
            yield timed(name, base / made.ratio(length), made, rng, queued)
        else:
            yield Observation(implementation=name, status=status, reason="as the test wants it")
    yield timed("sdpa_gqa", base, made, rng, base if made.queue_ratio else None)
    if made.flex_ms is not None:
        yield timed("flex_attention", made.flex_ms(length), made, rng)
    if made.dense_ratio is not None:
        factor = made.dense_ratio(length)
        queued = base / made.queue_ratio(length) * factor / 2 if made.queue_ratio else None
        yield timed("dense", base / made.ratio(length) * factor, made, rng, queued)
    if made.queue_ratio:
        # It keeps the host busy for 5 times the device's time. If it is not caught, its bursts are
        # as short as the device's time.
        held = replace(made, host_us=5000.0 * base)
        yield timed("needless_python", base, held, rng, base * (5 if made.queue_caught else 1))
        reason = "called one behind the other, MAE 0.8"
        hidden = Observation(
            implementation="hidden_in_a_thread", status=Status.WRONG, reason=reason
        )
        yield hidden
    if made.control_crashed:
        yield Observation(implementation="zero_output", status=Status.CRASHED, reason="SIGSEGV")
    elif made.control_caught:
        yield Observation(
            implementation="zero_output", status=Status.WRONG, reason="MAE 0.8", mae=0.8
        )
    else:
        yield timed("zero_output", base, made, rng)


def timed(name, median, made, rng, queued=None):
    """Return an observation with times around `median`. queued: ms of a call in its bursts; None:
    it has no bursts."""
    n = made.samples
    noise = np.linspace(-1, 1, 8) * made.noise
    times = median * (1 + made.noise * rng.standard_normal(n))
    return Observation(
        implementation=name,
        status=Status.OK,
        mae=1e-5,
        max_abs_err=1e-4,
        rel_l2=1e-5,
        samples=Samples(
            round=list(range(n)),
            order=[i % 2 for i in range(n)],
            at_s=[0.001 * i for i in range(n)],
            time_ms=[float(t) for t in times],
            escaped_ms=[0.0] * n,
            gap_hidden=[True] * n,
            host_us=[made.host_us] * n if queued else [],
            sm_clock_mhz=[1980] * n,
        ),
        bursts=Bursts(calls=[50] * 8, time_ms=[float(queued * (1 + x)) for x in noise])
        if queued
        else Bursts(),
        launches=made.launches,
    )


def spoilt(observation, update):
    """Return the observation with the values `update`. `escaped_ms` is set in each of its
    samples."""
    count = len(observation.samples.time_ms)
    samples = {name: [value] * count for name, value in update.items() if name == "escaped_ms"}
    errors = {name: value for name, value in update.items() if name not in samples}
    return observation.model_copy(
        update={"samples": observation.samples.model_copy(update=samples), **errors}
    )


@cache
def _environment(gpu, torch, triton):
    described = Described(
        software={"torch": torch, "triton": triton},
        device={"type": "cuda", "name": gpu, "compute_capability": "9.0"},
    )
    found = collect(described, None)
    card = Gpu(index=0, used=True, name=gpu, compute_capability="9.0")
    return found.model_copy(update={"gpus": [card]}).model_dump_json(indent=1)


def record(
    name, role, median_ms=None, queued_ms=None, *, samples=None, bursts=None, n_samples=20, **fields
):
    """Return a record with times. samples, bursts: instead of those made from `median_ms` and
    `queued_ms`."""
    known = {"run_id": "r", "case_id": "c", "op": OP, "device": "cuda"}
    known |= {"implementation": name, "role": role, "direction": Direction.FORWARD}
    known |= {"dtype": DType.FLOAT16, "length": 64, "distribution": "dense"}
    known |= {"status": Status.OK, "attempt": 1, "bytes_min": 1, "flops": 1}
    known |= {"source": Source("own" if role is Role.CANDIDATE else "others")}
    made = Record(**{**known, **fields})
    if made.status is not Status.OK:
        reason = made.reason or "as the test wants it"
        failed = Observation(implementation=name, status=made.status, reason=reason)
        return replace(made, observation=failed)
    if samples is None:
        count = 0 if median_ms is None else n_samples
        samples = Samples(round=list(range(count)), time_ms=[median_ms or 1.0] * count)
    if bursts is None:
        count = 0 if queued_ms is None else 8
        bursts = Bursts(calls=[9] * count, time_ms=[queued_ms or 1.0] * count)
    observed = Observation(implementation=name, status=made.status, samples=samples, bursts=bursts)
    made = replace(made, observation=observed)
    for regime, timings in ((made.regime, samples), (Regime.QUEUE, bursts)):
        if timings.time_ms:
            times = {
                "median_ms": float(np.median(timings.time_ms)),
                "n_samples": len(timings.round),
            }
            made = with_comparison(made, regime, **times)
    return made


def with_comparison(record, regime=Regime.DEVICE, reference=Reference.BASELINE, **known):
    """Return the record with these values in one comparison, which is added if it is missing."""
    old = record.compared(regime, reference)
    others = tuple(c for c in record.comparisons if c is not old)
    place = {"run_id": record.run_id, "case_id": record.case_id}
    place["implementation"] = record.implementation
    empty = Comparison(**place, regime=regime, reference=reference)
    return replace(record, comparisons=(*others, replace(old or empty, **known)))


def claim_rows(path, rows):
    """Repeat the row groups in the metadata of a table until it claims at least `rows` rows."""
    data = path.read_bytes()
    pages = data[: -8 - int.from_bytes(data[-8:-4], "little")]
    metadata = pq.read_metadata(path)
    while metadata.num_rows < rows:
        metadata.append_row_groups(metadata)
    metadata.write_metadata_file(path)
    path.write_bytes(pages + path.read_bytes()[4:])
