"""Keep the timer, the sensors and the implementations of a worker between requests."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from random import Random

import torch
from torch import Tensor

from nsabench import ops, registry
from nsabench.channel import Channel, Step
from nsabench.checker.protocol import Checked
from nsabench.delivery import Delivery, Form, Mailbox
from nsabench.errors import EnvironmentRefused, UsageError
from nsabench.failure import Failure
from nsabench.machine.clock import now_s
from nsabench.machine.environment import nvml
from nsabench.model.case import Case
from nsabench.model.measurement import Message
from nsabench.model.vocabulary import PROBES, Role
from nsabench.registry import Implementation
from nsabench.worker import guard, protocol
from nsabench.worker.calls import Deliver, prepare_call
from nsabench.worker.case_measurement import CaseMeasurement, Report
from nsabench.worker.guard import guarded
from nsabench.worker.inputs import InputSets
from nsabench.worker.timing import ceilings
from nsabench.worker.timing.timer import CpuTimer, Timer

SEED = 86028121  # prime; added to a seed, so that compiling sees other inputs than measuring


@dataclass
class WorkerSession:
    device: str
    kernels: Path | None
    ops_file: Path | None
    sources: Mapping[str, str] | None
    channel: Channel
    mailbox: Mailbox | None = None

    @cached_property
    def timer(self) -> Timer:
        """The timer of the device. Raises `EnvironmentRefused` if torch sees no such device."""
        if self.device == "cpu":
            return CpuTimer()
        if not torch.cuda.is_available():
            raise EnvironmentRefused(
                f"torch {torch.__version__} sees no CUDA device",
                "run `nsabench doctor`, or measure on the CPU with --device cpu.",
            )
        from nsabench.worker.timing.cuda import CudaTimer

        return CudaTimer()

    @cached_property
    def sensors(self) -> nvml.Device | None:
        if self.device == "cpu":
            return None
        return nvml.Device.by_torch(torch.cuda.get_device_properties(torch.cuda.current_device()))

    @cached_property
    def items(self) -> dict[tuple[str, str], Implementation]:
        """The implementations by op and name. Raises `UsageError` if one cannot be imported."""
        if self.device == "cuda" and torch.cuda.is_available():
            torch.cuda.init()  # otherwise an import may, and seem to change settings
        before = guard.settings()
        del before[guard.ENVIRONMENT]  # later calls of a library may need variables that it has set
        loaded = registry.load(self.kernels, self.sources, ops_file=self.ops_file)
        if changes := guard.restore(before):
            words = "; ".join(changes.values())
            sys.stderr.write(f"an import changed settings, which were set back: {words}\n")
        guard.collect_all()
        return {(item.op, item.name): item for item in loaded}

    def answer(
        self,
        request: protocol.Discover | protocol.MeasureCeilings | protocol.Compile | protocol.Measure,
    ) -> Message:
        match request:
            case protocol.Discover():
                loaded = registry.load(self.kernels, self.sources, ops_file=self.ops_file)
                return protocol.Discovered(implementations=loaded)
            case protocol.MeasureCeilings():
                # Foreign code is not imported yet, so it cannot influence the ceilings.
                return protocol.MeasuredCeilings(ceilings=ceilings.measure(self.device, self.timer))
            case protocol.Compile():
                item = self.items[request.case.op, request.implementation]
                self._announce(Step(phase="compilation", implementation=item.name))
                probes = request.probes and item.role is Role.CANDIDATE
                return compile_case(request.case, item, self.device, self._announce, probes=probes)
            case protocol.Measure():
                assert self.mailbox is not None
                self.mailbox.map(request.prepared.nbytes)
                measured = self.measure(request, self._announce, self._deliver)
                self.mailbox.close()
                return measured

    def measure(
        self, request: protocol.Measure, report: Report, deliver: Deliver
    ) -> protocol.Measured:
        # Make both first, so that they bind clocks that no foreign code has replaced.
        timer, sensors = self.timer, self.sensors
        items = [self.items[request.case.op, name] for name in request.implementations]
        measurement = CaseMeasurement(request, self.device, timer, sensors, report, deliver)
        measured = measurement.run(items)
        guard.give_back(self.device)
        return measured

    def _announce(self, step: Step) -> None:
        self.channel.send(step.model_copy(update={"awaits": True}))
        sys.stdin.buffer.readline()

    def _deliver(self, delivery: Delivery, sets: InputSets, results: Sequence[Tensor]) -> bool:
        assert self.mailbox is not None
        self.mailbox.put(sets.form, results)
        self.channel.send(delivery)
        return Checked.model_validate_json(sys.stdin.buffer.readline()).right


def compile_case(
    case: Case, item: Implementation, device: str, report: Report, *, probes: bool
) -> protocol.Compiled:
    """Fill the caches of compilers with a call whose result is not checked. Raises `DeviceLost`.
    If `probes`, also call the implementation on the probes of the case."""
    guard.forget_earlier_cases()
    try:
        computed = ops.computed(case, item.computes)
        form = Form(sets=1, dtype=case.dtype, results={})
        seeds = [case.seed + SEED]
        sets = guarded(partial(InputSets, computed, seeds, form, device), device, item.name)
        began = now_s()
        guarded(partial(_call, computed, item, sets), device, item.name)
        first_s = now_s() - began
        asked = guarded(partial(ops.probes, case), device) if probes else {}
        for name, probe in asked.items():
            if not item.concerns(probe.case):
                continue
            report(Step(phase=PROBES, implementation=item.name))
            with suppress(Failure):  # a kernel may decline the probe
                sets = guarded(partial(InputSets, case, seeds, form, device, (name, probe)), device)
                guarded(partial(_call, probe.case, item, sets), device, item.name)
        return protocol.Compiled(first_s=first_s)
    except (Failure, UsageError) as error:  # the op of an alternative may have no such case
        return protocol.Compiled(reason=str(error))
    finally:
        guard.give_back(device)


def _call(case: Case, item: Implementation, sets: InputSets) -> None:
    prepare_call(item, case.direction, sets, 0, Random(case.seed))()
