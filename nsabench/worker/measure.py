"""Measure one case in the worker: inputs, checks of each arm, then interleaved samples."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from functools import partial
from random import Random, SystemRandom

from nsabench import ops
from nsabench.channel import Step
from nsabench.checker.messages import NoOracle, Prepared
from nsabench.failure import Failure
from nsabench.machine.clock import now_s
from nsabench.machine.environment import nvml
from nsabench.model.case import Case
from nsabench.model.job import ALL_STAY, EarlyExit
from nsabench.model.measurement import Bursts, Conditions, Observation, Samples
from nsabench.model.vocabulary import NO_ORDER, Mode, Role, Runs, Status
from nsabench.registry import Implementation
from nsabench.verdicts.statistics import quantile
from nsabench.worker import launches
from nsabench.worker.arm import CaseArm
from nsabench.worker.conditions import PROBES, ConditionMonitor
from nsabench.worker.guard import guarded
from nsabench.worker.inputs import InputSets
from nsabench.worker.launches import Counted
from nsabench.worker.outputs import Deliver
from nsabench.worker.precheck import LEFT_OUT, Precheck, Report
from nsabench.worker.protocol import Measured
from nsabench.worker.state import forget_earlier_cases
from nsabench.worker.timing import sampling, stopping
from nsabench.worker.timing.sampling import Collected
from nsabench.worker.timing.timer import Timer

PARITY_ONLY = "parity only: Triton's interpreter is not timed"

Drawn = tuple[Case, InputSets] | NoOracle  # shared by items that compute the same op


def measure(
    case: Case,
    items: list[Implementation],
    *,
    device: str,
    timer: Timer,
    sensors: nvml.Device | None,
    report: Report,
    prepared: Prepared,
    seeds: Sequence[int],
    deliver: Deliver,
    early_exit: EarlyExit = ALL_STAY,
) -> Measured:
    """Raises `DeviceLost`. seeds: of the sets of inputs. deliver: hands outputs to the checker."""
    report(Step(phase="inputs"))
    forget_earlier_cases()
    timer.forget()
    rng = SystemRandom()  # no implementation can guess the order of calls, or which are checked
    observations: dict[str, Observation] = {}
    tried: list[CaseArm] = []
    arms: list[CaseArm] = []  # the right ones that are timed on this device
    drawn: dict[str, Drawn] = {}
    for item in items:
        if item.computes not in drawn:
            drawn[item.computes] = _draw_inputs(case, item.computes, device, prepared, seeds)
        inputs = drawn[item.computes]
        if isinstance(inputs, NoOracle):
            observations[item.name] = Observation(
                implementation=item.name, status=inputs.status, reason=inputs.reason
            )
        else:
            computed, sets = inputs
            tried.append(CaseArm(item, computed, device, sets, rng, deliver))
    precheck = Precheck(early_exit)
    # In a graph, the replay may be much faster than the captured call.
    if case.timing.mode is Mode.STREAM:
        precheck.run([a for a in tried if Runs.timed(a.item.devices, device)], timer, report)
    for arm in precheck.ordered(tried):
        item, sets = arm.item, arm.sets
        few = precheck.left_out(arm.name, [timed.name for timed in arms])
        if few is not None:
            observations[arm.name] = _observe(arm)
            observations[arm.name].samples = few
            observations[arm.name].notes.append(LEFT_OUT)
            continue
        report(Step(phase="parity", implementation=item.name))
        try:
            precheck.raise_failure(arm.name)
            arm.check()
            if case.timing.mode is Mode.GRAPH:
                arm.capture()
        except Failure as failure:
            failure.alone()  # the frames of its traceback hold memory
            report(Step(phase=failure.status.value, implementation=item.name))
            observations[item.name] = _observe(arm, failure)
            sets.repair()  # the next arm is not to be blamed
        else:
            report(Step(phase=Status.OK.value, implementation=item.name))
            observations[item.name] = _observe(arm)
            if Runs.timed(item.devices, device):
                arms.append(arm)
            else:
                observations[item.name].notes.append(PARITY_ONLY)
            continue
        if device == "cuda":  # cycles that foreign code made hold memory
            gc.collect()
    gc.collect()
    conditions, busy_s = Conditions(), 0.0
    if arms:
        conditions, busy_s = _time_arms(case, arms, observations, timer, sensors, report, rng)
    for arm in tried:  # last, since a compiler may now prefer slower code for every length
        observation = observations[arm.name]
        if arm.item.role is Role.CANDIDATE and observation.status is Status.OK:
            try:
                notes = _check_probes(arm, case, prepared, seeds, rng, deliver, report)
            except Failure as failure:
                failure.alone()
                observations[arm.name] = _observe(arm, failure)
            else:
                observation.notes += notes
    return Measured(
        observations=[observations[item.name] for item in items],
        conditions=conditions,
        measuring_s=busy_s + sum(arm.called_s for arm in tried),
    )


def _check_probes(
    arm: CaseArm,
    case: Case,
    prepared: Prepared,
    seeds: Sequence[int],
    rng: Random,
    deliver: Deliver,
    report: Report,
) -> list[str]:
    """Call a kernel once on each probe. Return a note for each that it declines.

    Raises `Failure` if it is wrong.
    """
    item, device, notes = arm.item, arm.device, []
    probes = ops.probes(case) if prepared.probes else {}
    for name, form in prepared.probes.items():
        probe = probes[name]
        if not item.concerns(probe.case):
            continue
        report(Step(phase=PROBES, implementation=arm.name))
        draw = partial(InputSets, case, seeds[:1], form, device, (name, probe))
        try:
            sets = guarded(draw, device)
        except Failure as failure:
            notes.append(f"it was not called with {name}: {failure.reason}")
            continue
        call = CaseArm(item, probe.case, device, sets, rng, deliver)
        try:
            call.first_call()
        except Failure as failure:
            if failure.status is Status.WRONG:
                raise
            notes.append(f"it declines {name}: {failure.reason}")
        arm.called_s += call.called_s
    return notes


def _draw_inputs(
    case: Case, computes: str, device: str, prepared: Prepared, seeds: Sequence[int]
) -> Drawn:
    if computes in prepared.failures:
        return prepared.failures[computes]
    computed, form = ops.computed(case, computes), prepared.forms[computes]
    try:
        sets = guarded(partial(InputSets, computed, seeds, form, device), device)
    except Failure as failure:
        return NoOracle(status=failure.status, reason=f"its inputs: {failure.reason}")
    return computed, sets


def _time_arms(
    case: Case,
    arms: list[CaseArm],
    observations: dict[str, Observation],
    timer: Timer,
    sensors: nvml.Device | None,
    report: Report,
    rng: Random,
) -> tuple[Conditions, float]:
    """Sample the arms. Return sensor readings, and the seconds of timed calls."""
    rule = stopping.build(
        case.timing.stopping,
        {a.name for a in arms if a.item.role is Role.CANDIDATE},
        {a.name for a in arms if a.item.role is Role.BASELINE},
        {a.name for a in arms if a.item.role is Role.ALTERNATIVE},
    )
    out = Collected()
    with ConditionMonitor(sensors) as monitor:
        for arm in arms if not case.timing.is_brief else ():
            report(Step(phase="warm-up", implementation=arm.name))
            sampling.warm_up(arm, timer, case.timing.warmup_s, out)
        report(Step(phase="timing", allowance=len(arms) + 1))
        start = now_s()
        sampling.take_samples(arms, timer, rule, rng, out)
        sampled_arms = [arm for arm in arms if arm.name in out.samples]
        by_arm = _take_bursts(case, sampled_arms, timer, report, rng, out)
    for arm in arms:  # after the bursts, since they overwrite every buffer of a ring
        if arm.name not in out.failed:
            out.finish(arm, arm.outputs.finish)
    counted = _count_launches(
        [a for a in arms if a.name in out.samples.keys() - out.failed], report
    )
    for arm in arms:
        failure = out.failed.get(arm.name)
        observations[arm.name] = _observe(arm, failure)
        if not failure:
            observations[arm.name].samples = out.samples[arm.name]
            observations[arm.name].bursts = by_arm.get(arm.name, Bursts())
            if arm.name in counted:
                observations[arm.name].launches = counted[arm.name].launches
                observations[arm.name].kernels_us = counted[arm.name].kernels_us
            monitor.annotate(out.samples[arm.name], start)
    return monitor.summary(), out.busy_s


def _take_bursts(
    case: Case, arms: list[CaseArm], timer: Timer, report: Report, rng: Random, out: Collected
) -> dict[str, Bursts]:
    """Return bursts of the arms that were timed."""
    if case.timing.is_brief or not arms:
        return {}
    report(Step(phase="bursts", allowance=len(arms) + 1))
    call_ms = {arm.name: _least_ms(out.samples[arm.name]) for arm in arms}
    call_bytes = arms[0].sets.nbytes if case.direction.differentiates else 0
    contenders = _find_contenders(arms, call_ms)
    with out.busy(*arms):
        return sampling.take_bursts(arms, timer, call_ms, call_bytes, rng, out.failed, contenders)


def _count_launches(arms: list[CaseArm], report: Report) -> dict[str, Counted]:
    asked = [
        arm
        for arm in arms
        if arm.device == "cuda"
        and (arm.item.role is not Role.CONTROL or arm.item.caught_by == "host")
    ]
    if not asked:
        return {}
    report(Step(phase="launches", allowance=len(asked) + 1))
    return launches.count({arm.name: arm.one_call for arm in asked})


def _find_contenders(arms: list[CaseArm], call_ms: Mapping[str, float]) -> set[str]:
    """Return the candidates, and the arms that are near the best of their role."""
    near = {a.name for a in arms if a.item.role is Role.CANDIDATE}
    for role in (Role.BASELINE, Role.ALTERNATIVE):
        of_kind = {a.name: call_ms[a.name] for a in arms if a.item.role is role}
        best = min(of_kind.values(), default=0.0)
        factor = stopping.CONTENDER_MARGIN if best > sampling.SLOW_MS else stopping.HOPELESS
        near |= {name for name, ms in of_kind.items() if ms <= factor * best}
    return near


def _least_ms(samples: Samples) -> float:
    return max(quantile(samples.time_ms, 0.5), quantile(samples.host_us, 0.5) / 1e3)


def _observe(arm: CaseArm, failure: Failure | None = None) -> Observation:
    return Observation(
        implementation=arm.name,
        status=failure.status if failure else Status.OK,
        reason=failure.reason if failure else "",
        traceback=failure.trace if failure else "",
        compile_s=arm.compile_s,
        peak_mem_bytes=arm.peak_mem_bytes,
        config=arm.config,
        notes=[f"it changed, and it was set back: {words}" for words in arm.changed.values()]
        + [NO_ORDER] * arm.awaits_device,
    )
