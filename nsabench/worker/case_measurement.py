"""Measure one case in the worker: check each arm (an implementation on the case), then time it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import SystemRandom

from nsabench import ops
from nsabench.channel import Step
from nsabench.checker.protocol import NoOracle
from nsabench.failure import Failure
from nsabench.machine.clock import now_s
from nsabench.machine.environment import nvml
from nsabench.machine.environment.nvml import ConditionMonitor
from nsabench.model.case import Case
from nsabench.model.job import EarlyExit
from nsabench.model.measurement import Bursts, Conditions, Observation, Samples
from nsabench.model.vocabulary import NO_ORDER, PROBES, Mode, Role, Runs, Status
from nsabench.registry import Implementation
from nsabench.verdicts.statistics import quantile
from nsabench.worker.arm import CaseArm
from nsabench.worker.calls import Deliver
from nsabench.worker.guard import forget_earlier_cases, guarded
from nsabench.worker.inputs import InputSets
from nsabench.worker.protocol import Measure, Measured
from nsabench.worker.timing import cuda, sampling
from nsabench.worker.timing.sampling import Collected
from nsabench.worker.timing.timer import Timer

PARITY_ONLY = "parity only: Triton's interpreter is not timed"

Drawn = tuple[Case, InputSets] | NoOracle  # shared by implementations that compute the same op


@dataclass
class CaseMeasurement:
    request: Measure
    device: str
    timer: Timer
    sensors: nvml.Device | None
    report: Report
    deliver: Deliver

    def __post_init__(self) -> None:
        self._case = self.request.case
        # No implementation can guess the order of calls, or which of them are checked.
        self._rng = SystemRandom()
        self._observations: dict[str, Observation] = {}
        self._out = Collected()

    def run(self, items: list[Implementation]) -> Measured:
        """Check and time the items. Raises `DeviceLost`."""
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
        for arm in tried:  # last: after calls with other sizes, torch.compile may use slower code
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
        # Graph mode has no precheck, since replays may be much faster than its calls.
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
                    arm.caller.capture()
            except Failure as failure:
                failure.alone()  # the frames of its traceback hold memory
                self.report(Step(phase=failure.status.value, implementation=arm.name))
                self._observe(arm, failure)
                arm.sets.repair()  # so that the next arm is not blamed
            else:
                self.report(Step(phase=Status.OK.value, implementation=arm.name))
                observation = self._observe(arm)
                if Runs.timed(arm.item.devices, self.device):
                    arms.append(arm)
                else:
                    observation.notes.append(PARITY_ONLY)
                continue
            if self.device == "cuda":  # reference cycles in foreign code may hold memory
                gc.collect()
        gc.collect()
        return arms

    def _time_arms(self, arms: list[CaseArm]) -> Conditions:
        timing, out = self._case.timing, self._out
        by_role = {role: {a.name for a in arms if a.item.role is role} for role in Role}
        rule = sampling.make_rule(
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
        for arm in arms:  # after the bursts, which overwrite earlier outputs in reused buffers
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

    def _count_launches(self, arms: list[CaseArm]) -> dict[str, cuda.Counted]:
        asked = [
            arm
            for arm in arms
            if self.device == "cuda"
            and (arm.item.role is not Role.CONTROL or arm.item.caught_by == "host")
        ]
        if not asked:
            return {}
        self.report(Step(phase="launches", allowance=len(asked) + 1))
        return cuda.count_launches({arm.name: arm.one_call for arm in asked})

    def _check_probes(self, arm: CaseArm) -> list[str]:
        """Call an implementation once on each probe. Return notes on those declined or not drawn.

        Raises `Failure` if a result is wrong.
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
            arm.caller.called_s += call.called_s
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
            notes=[
                f"it changed a setting (restored): {words}" for words in arm.caller.changed.values()
            ]
            + [NO_ORDER] * arm.order.awaits_device,
        )
        return observation


def _find_contenders(arms: list[CaseArm], call_ms: Mapping[str, float]) -> set[str]:
    """Return the candidates, and the baselines and alternatives near the best of their role."""
    near = {a.name for a in arms if a.item.role is Role.CANDIDATE}
    for role in (Role.BASELINE, Role.ALTERNATIVE):
        of_kind = {a.name: call_ms[a.name] for a in arms if a.item.role is role}
        best = min(of_kind.values(), default=0.0)
        factor = sampling.CONTENDER_MARGIN if best > sampling.SLOW_MS else sampling.HOPELESS
        near |= {name for name, ms in of_kind.items() if ms <= factor * best}
    return near


def _least_ms(samples: Samples) -> float:
    return max(quantile(samples.time_ms, 0.5), quantile(samples.host_us, 0.5) / 1e3)


Report = Callable[[Step], None]

ROUNDS = 2
BEHIND = 5.0
LEFT_OUT = f"left out: {ROUNDS} calls took over {BEHIND:g} times as long as a faster baseline"


class Precheck:
    def __init__(self, early_exit: EarlyExit) -> None:
        self._early_exit = early_exit
        self._samples: dict[str, Samples] = {}
        self._failures: dict[str, Failure] = {}
        self._call_ms: dict[str, float] = {}  # upper bounds: a first call may compile

    def run(self, arms: Sequence[CaseArm], timer: Timer, report: Report) -> None:
        """Call each baseline that may exit early; time slow ones, up to `ROUNDS` times."""
        left = [arm for arm in arms if arm.name in self._early_exit.baselines]
        if len(left) <= self._early_exit.stay:
            return
        calls: list[Callable[[CaseArm], float]] = [CaseArm.first_call]  # which may compile
        calls += [partial(self._sample, timer, round_) for round_ in range(ROUNDS)]
        for call in calls:
            left = [arm for arm in left if self._is_slow(call, arm, report)]

    def _is_slow(self, call: Callable[[CaseArm], float], arm: CaseArm, report: Report) -> bool:
        report(Step(phase="precheck", implementation=arm.name))
        try:
            self._call_ms[arm.name] = call(arm)
        except Failure as failure:
            self._failures[arm.name] = failure.alone()
            self._call_ms.pop(arm.name, None)
            self._samples.pop(arm.name, None)
            arm.sets.repair()
            if arm.device == "cuda":
                gc.collect()
            return False
        return self._call_ms[arm.name] >= self._early_exit.least_ms

    def _sample(self, timer: Timer, round_: int, arm: CaseArm) -> float:
        called_s, begun = arm.called_s, now_s()
        arm.sets.repair_and_flag()
        prepare = partial(arm.prepare_unchecked, round_)
        sample, result = timer.sample(arm.name, prepare(), prepare)
        arm.inspect(round_, result)
        arm.caller.called_s = called_s + now_s() - begun
        samples = self._samples.setdefault(arm.name, Samples())
        samples.round.append(round_)
        samples.time_ms.append(sample.time_ms)
        samples.escaped_ms.append(sample.escaped_ms)
        samples.gap_hidden.append(sample.gap_hidden)
        samples.host_us.append(round(sample.host_us, 2))
        return max(sample.time_ms, sample.host_us / 1e3)  # back to back, the longer time counts

    def raise_failure(self, name: str) -> None:
        if name in self._failures:
            raise self._failures[name]

    def ordered(self, arms: Sequence[CaseArm]) -> list[CaseArm]:
        # Baselines that may be left out come last, the fastest of them first.
        return sorted(arms, key=lambda arm: self._behind_ms(arm.name, self._call_ms))

    def _behind_ms(self, name: str, others: Iterable[str]) -> float:
        """Return the least time of a baseline that is far behind one of `others`, else 0."""
        samples = self._samples.get(name)
        if samples is None or len(samples.time_ms) < ROUNDS:
            return 0.0
        least_ms = min(samples.time_ms)
        far = any(least_ms > BEHIND * self._call_ms[other] for other in others)
        return least_ms if far and least_ms >= self._early_exit.least_ms else 0.0

    def left_out(self, name: str, right: Sequence[str]) -> Samples | None:
        """Return a baseline's samples if `stay` or more arms are `right`, and one is far faster."""
        seen = [other for other in right if other in self._call_ms]
        if len(seen) < self._early_exit.stay or not self._behind_ms(name, seen):
            return None
        return self._samples[name]
