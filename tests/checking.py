"""Run a checker in the test's process, together with the worker's code."""

import os
import weakref
from datetime import UTC, datetime
from weakref import WeakKeyDictionary

from nsabench import ops, registry
from nsabench.checker.judge import OutputJudge
from nsabench.checker.protocol import Prepare, Prepared
from nsabench.delivery import Mailbox
from nsabench.failure import Failure
from nsabench.model.case import Case, FixedCount, Timing
from nsabench.model.plan import ImplementationInfo, Plan, PlannedCase
from nsabench.model.source import Source
from nsabench.model.vocabulary import Direction, DType, Purpose, Role, Runs, Status
from nsabench.registry import Implementation
from nsabench.running.executor import with_judgement
from nsabench.verdicts.attempts import CaseState
from nsabench.verdicts.records import make_records
from nsabench.worker.arm import CaseArm
from nsabench.worker.case_measurement import CaseMeasurement
from nsabench.worker.inputs import InputSets
from nsabench.worker.protocol import Measure
from nsabench.worker.timing.timer import CpuTimer
from tests.runs import Made, log_of, make_plan

STRIDE = 7919  # between the seeds of successive sets
PATIENCE_S = 60.0  # A diagnosis must not depend on how busy the machine is.


class Desk:
    """A checker for one case. Tests or a worker's code pass outputs to `deliver`.

    tells: whether `deliver` raises `Failure` with the checker's reason for a wrong output, instead
    of returning False.
    """

    def __init__(self, case, computes=("",), device="cpu", tells=True, probes=False):
        count = max(2, case.timing.rotate)
        self.seeds = [case.seed + number * STRIDE for number in range(count)]
        self.tells = tells
        descriptor = os.memfd_create("test")
        weakref.finalize(self, os.close, descriptor)
        self._mailbox, its_end = Mailbox(descriptor, device), Mailbox(descriptor, device)
        for mailbox in (self._mailbox, its_end):  # else unmapped memory stays registered with CUDA
            weakref.finalize(self, mailbox.close)
        self.checker = OutputJudge(device, its_end, PATIENCE_S)
        request = Prepare(case=case, computes=list(computes), seeds=self.seeds, probes=probes)
        self.prepared: Prepared = self.checker.prepare(request)
        self._mailbox.map(self.prepared.nbytes)

    def deliver(self, delivery, sets, results):
        self._mailbox.put(sets.form, results)
        right = self.checker.check(delivery).right
        if not right and self.tells:
            found = self.checker.tallies[delivery.implementation]
            raise Failure(Status.WRONG, found.reason)
        return right

    def request(self, implementations, case):
        """Return the request that a supervisor would send to a worker."""
        return Measure(
            case=case,
            implementations=implementations,
            prepared=self.prepared,
            seeds=self.seeds,
        )

    def tally(self, name):
        return self.checker.tallies[name]

    def conclude(self):
        judged = self.checker.conclude([*self.checker.tallies]).judged
        self._mailbox.close()
        return judged


_desks = WeakKeyDictionary()


def sets_of(case, device="cpu", computes=""):
    """Return the input sets of a case, for which a new checker has oracles. Raises `Failure` if the
    oracle fails."""
    desk = Desk(case, (computes,), device)
    if failure := desk.prepared.failures.get(computes):
        raise Failure(failure.status, failure.reason)
    form = desk.prepared.forms[computes]
    sets = InputSets(ops.computed(case, computes), desk.seeds, form, device)
    _desks[sets] = desk
    return sets


def desk_of(sets):
    return _desks[sets]


def arm_of(item, case, sets, rng):
    desk = desk_of(sets)
    return CaseArm(item, case, sets, desk.checker.device, rng, desk.deliver)


def measured(case, items, **given):
    """Return what a worker measures, with what the checker found. given: fields of `Measure`, or
    device, probes, report, timer, sensors."""
    device = given.pop("device", "cpu")
    computes = sorted({item.computes for item in items})
    desk = Desk(case, computes, device, tells=False, probes=given.pop("probes", False))
    report = given.pop("report", lambda step: None)
    timer, sensors = given.pop("timer", None) or CpuTimer(), given.pop("sensors", None)
    request = desk.request([item.name for item in items], case).model_copy(update=given)
    found = CaseMeasurement(request, device, timer, sensors, report, desk.deliver).run(items)
    judged = desk.conclude()
    found.observations = [
        with_judgement(o, judged.get(o.implementation)) for o in found.observations
    ]
    return found


def observations(case, items, **given):
    return measured(case, items, **given).observations


def a_case(op, shape, **fields):
    """Return a case: forward, float16 and the op's first distribution, unless `fields` say
    otherwise."""
    defaults = {
        "dtype": DType.FLOAT16,
        "direction": Direction.FORWARD,
        "distribution": ops.get(op).distributions[0],
        "timeout_s": 60,
        "seed": 1,
    }
    return Case(op=op, shape=dict(shape), **{**defaults, **fields})


def rounds(count, *, warmup_s=0.005, **fields):
    """Return a timing that stops after `count` rounds."""
    stopping = FixedCount(kind="fixed_count", rounds=count)
    return Timing(warmup_s=warmup_s, stopping=stopping, **fields)


def rows_of(case, items, found):
    """Return the records, as checks see them, of a case that was measured."""
    infos = [ImplementationInfo.model_validate(item, from_attributes=True) for item in items]
    names = tuple(item.name for item in items)
    planned = PlannedCase(id=case.id, case=case, implementations=names)
    update = {"cases": [planned], "implementations": infos}
    plan = make_plan(Made()).model_copy(update=update)
    state = CaseState(Purpose.MAIN, case.id, found.observations, {1: found.conditions})
    return make_records(plan, log_of(plan).sessions[0], state)


def plan_of(kernels, cases, device="cpu"):
    """Return a plan of `cases`: the baseline is `sdpa_gqa`, and all other names are candidates of
    the file `kernels`."""
    sources = registry.sources(kernels)
    own = Source.from_file(kernels, kernels.read_bytes())
    names = dict.fromkeys(name for planned in cases for name in planned.implementations)
    return Plan(
        run_id="test",
        created=datetime(2026, 1, 1, tzinfo=UTC),
        device=device,
        kernels=str(kernels),
        kernels_sha256=sources[own],
        sources=sources,
        matrices=[],
        implementations=[
            ImplementationInfo(
                op="selection_rows",
                name=name,
                role=Role.BASELINE if name == "sdpa_gqa" else Role.CANDIDATE,
                devices=(Runs.CUDA, Runs.CPU),
                source="nsabench" if name == "sdpa_gqa" else own,
            )
            for name in names
        ],
        cases=list(cases),
    )


def registered(op, name, call, role=Role.CANDIDATE, **declared):
    """Return an implementation, as the decorators make it; for CPUs unless `declared` differs."""
    given = {"devices": (Runs.CPU,), "source": Source("test")} | declared
    return Implementation(op=op, name=name, call=call, role=role, **given)
