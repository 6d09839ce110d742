"""Measure one case in the worker: inputs, checks of each arm, then interleaved samples."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from random import SystemRandom

from nsabench import ops
from nsabench.channel import Step
from nsabench.checker.messages import NoOracle
from nsabench.failure import Failure
from nsabench.machine.clock import now_s
from nsabench.machine.environment import nvml
from nsabench.model.case import Case
from nsabench.model.measurement import Bursts, Conditions, Observation, Samples
from nsabench.model.vocabulary import NO_ORDER, Mode, Role, Runs, Status
from nsabench.registry import Implementation
from nsabench.verdicts.statistics import quantile
from nsabench.worker import launches
from nsabench.worker.arm import CaseArm
from nsabench.worker.conditions import PROBES, ConditionMonitor
from nsabench.worker.guard import guarded
from nsabench.worker.inputs import InputSets
from nsabench.worker.outputs import Deliver
from nsabench.worker.precheck import LEFT_OUT, Precheck, Report
from nsabench.worker.protocol import Measure, Measured
from nsabench.worker.state import forget_earlier_cases
from nsabench.worker.timing import sampling, stopping
from nsabench.worker.timing.sampling import Collected
from nsabench.worker.timing.timer import Timer

PARITY_ONLY = "parity only: Triton's interpreter is not timed"

Drawn = tuple[Case, InputSets] | NoOracle  # shared by items that compute the same op


@dataclass
class CaseMeasurement:
    """Measures the case of a request. deliver: hands outputs to the checker."""

    request: Measure
    device: str
    timer: Timer
    sensors: nvml.Device | None
    report: Report
    deliver: Deliver

    def __post_init__(self) -> None:
        self._case = self.request.case
        # No implementation can guess the order of calls, or which are checked.
        self._rng = SystemRandom()
        self._observations: dict[str, Observation] = {}
        self._out = Collected()

    def run(self, items: list[Implementation]) -> Measured:
        """Raises `DeviceLost`."""
        self.report(Step(phase="inputs"))
        forget_earlier_cases()
        self.timer.forget()
        tried: list[CaseArm] = []
        drawn: dict[str, Drawn] = {}
        for item in items:
            if item.computes not in drawn:
                drawn[item.computes] = self._draw_inputs(item.computes)
            inputs = drawn[item.computes]
            if isinstance(inputs, NoOracle):
                self._observations[item.name] = Observation(
                    implementation=item.name, status=inputs.status, reason=inputs.reason
                )
            else:
                tried.append(CaseArm(item, *inputs, self.device, self._rng, self.deliver))
        arms = self._check_arms(tried)
        conditions = self._time_arms(arms) if arms else Conditions()
        for arm in tried:  # last, since a compiler may now prefer slower code for every length
            observation = self._observations[arm.name]
            if arm.item.role is Role.CANDIDATE and observation.status is Status.OK:
                try:
                    observation.notes += self._check_probes(arm)
                except Failure as failure:
                    self._observe(arm, failure.alone())
        return Measured(
            observations=[self._observations[item.name] for item in items],
            conditions=conditions,
            measuring_s=self._out.busy_s + sum(arm.called_s for arm in tried),
        )

    def _draw_inputs(self, computes: str) -> Drawn:
        prepared = self.request.prepared
        if computes in prepared.failures:
            return prepared.failures[computes]
        case, form = ops.computed(self._case, computes), prepared.forms[computes]
        draw = partial(InputSets, case, self.request.seeds, form, self.device)
        try:
            return case, guarded(draw, self.device)
        except Failure as failure:
            return NoOracle(status=failure.status, reason=f"its inputs: {failure.reason}")

    def _check_arms(self, tried: list[CaseArm]) -> list[CaseArm]:
        """Return the arms that are right and timed on this device."""
        arms: list[CaseArm] = []
        precheck = Precheck(self.request.early_exit)
        # In a graph, the replay may be much faster than the captured call.
        if self._case.timing.mode is Mode.STREAM:
            timed = [arm for arm in tried if Runs.timed(arm.item.devices, self.device)]
            precheck.run(timed, self.timer, self.report)
        for arm in precheck.ordered(tried):
            few = precheck.left_out(arm.name, [timed.name for timed in arms])
            if few is not None:
                observation = self._observe(arm)
                observation.samples = few
                observation.notes.append(LEFT_OUT)
                continue
            self.report(Step(phase="parity", implementation=arm.name))
            try:
                precheck.raise_failure(arm.name)
                arm.check()
                if self._case.timing.mode is Mode.GRAPH:
                    arm.capture()
            except Failure as failure:
                failure.alone()  # the frames of its traceback hold memory
                self.report(Step(phase=failure.status.value, implementation=arm.name))
                self._observe(arm, failure)
                arm.sets.repair()  # the next arm is not to be blamed
            else:
                self.report(Step(phase=Status.OK.value, implementation=arm.name))
                observation = self._observe(arm)
                if Runs.timed(arm.item.devices, self.device):
                    arms.append(arm)
                else:
                    observation.notes.append(PARITY_ONLY)
                continue
            if self.device == "cuda":  # cycles that foreign code made hold memory
                gc.collect()
        gc.collect()
        return arms

    def _time_arms(self, arms: list[CaseArm]) -> Conditions:
        """Sample the arms. Return sensor readings."""
        timing, out = self._case.timing, self._out
        by_role = {role: {a.name for a in arms if a.item.role is role} for role in Role}
        rule = stopping.build(
            timing.stopping,
            by_role[Role.CANDIDATE],
            by_role[Role.BASELINE],
            by_role[Role.ALTERNATIVE],
        )
        with ConditionMonitor(self.sensors) as monitor:
            for arm in arms if not timing.is_brief else ():
                self.report(Step(phase="warm-up", implementation=arm.name))
                sampling.warm_up(arm, self.timer, timing.warmup_s, out)
            self.report(Step(phase="timing", allowance=len(arms) + 1))
            start = now_s()
            sampling.take_samples(arms, self.timer, rule, self._rng, out)
            bursts = self._take_bursts([arm for arm in arms if arm.name in out.samples])
        for arm in arms:  # after the bursts, since they overwrite every buffer of a ring
            if arm.name not in out.failed:
                out.finish(arm, arm.outputs.finish)
        counted = self._count_launches(
            [a for a in arms if a.name in out.samples.keys() - out.failed]
        )
        for arm in arms:
            failure = out.failed.get(arm.name)
            observation = self._observe(arm, failure)
            if not failure:
                observation.samples = out.samples[arm.name]
                observation.bursts = bursts.get(arm.name, Bursts())
                if arm.name in counted:
                    observation.launches, observation.kernels_us = counted[arm.name]
                monitor.annotate(observation.samples, start)
        return monitor.summary()

    def _take_bursts(self, arms: list[CaseArm]) -> dict[str, Bursts]:
        if self._case.timing.is_brief or not arms:
            return {}
        self.report(Step(phase="bursts", allowance=len(arms) + 1))
        out = self._out
        call_ms = {arm.name: _least_ms(out.samples[arm.name]) for arm in arms}
        call_bytes = arms[0].sets.nbytes if self._case.direction.differentiates else 0
        contenders = _find_contenders(arms, call_ms)
        with out.busy(*arms):
            return sampling.take_bursts(
                arms, self.timer, call_ms, call_bytes, self._rng, out.failed, contenders
            )

    def _count_launches(self, arms: list[CaseArm]) -> dict[str, launches.Counted]:
        asked = [
            arm
            for arm in arms
            if self.device == "cuda"
            and (arm.item.role is not Role.CONTROL or arm.item.caught_by == "host")
        ]
        if not asked:
            return {}
        self.report(Step(phase="launches", allowance=len(asked) + 1))
        return launches.count({arm.name: arm.one_call for arm in asked})

    def _check_probes(self, arm: CaseArm) -> list[str]:
        """Call a kernel once on each probe. Return a note for each that it declines.

        Raises `Failure` if it is wrong.
        """
        notes, forms = [], self.request.prepared.probes
        probes = ops.probes(self._case) if forms else {}
        for name, form in forms.items():
            probe = probes[name]
            if not arm.item.concerns(probe.case):
                continue
            self.report(Step(phase=PROBES, implementation=arm.name))
            seeds = self.request.seeds[:1]
            draw = partial(InputSets, self._case, seeds, form, self.device, (name, probe))
            try:
                sets = guarded(draw, self.device)
            except Failure as failure:
                notes.append(f"it was not called with {name}: {failure.reason}")
                continue
            call = CaseArm(arm.item, probe.case, sets, self.device, self._rng, self.deliver)
            try:
                call.first_call()
            except Failure as failure:
                if failure.status is Status.WRONG:
                    raise
                notes.append(f"it declines {name}: {failure.reason}")
            arm.called_s += call.called_s
        return notes

    def _observe(self, arm: CaseArm, failure: Failure | None = None) -> Observation:
        observation = self._observations[arm.name] = Observation(
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
        return observation


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
