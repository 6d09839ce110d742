"""Calls on inputs that come from the referee: all that is between the supervisor's two looks at
its clock."""

from __future__ import annotations

import base64
import mmap
import pickle
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nsabench.assessment.checks.parity import OUTPUT
from nsabench.execution.failure import Failure
from nsabench.execution.protocol import NEW_GRADIENTS, Examine, Examined, Step
from nsabench.execution.referee import sheets
from nsabench.execution.worker import calls, parity, state
from nsabench.execution.worker.guard import guarded
from nsabench.machine.clock import now_s
from nsabench.model.vocabulary import Direction, Status
from nsabench.registry import Implementation

Results = dict[str, Any]


def examine(
    request: Examine,
    item: Implementation,
    device: str,
    report: Callable[[Step], None] = lambda step: None,
) -> Examined:
    """Call `item` on each set of inputs, and write what it returns where the supervisor finds it.

    Raises `DeviceLost` when the device is lost.
    """
    settings = state.settings()
    try:
        inputs = _of_the_referee(request.inputs)
        outputs = sheets.mapping(Path(request.outputs), sheets.size_of(request.answers), new=True)
        by_set = pickle.loads(base64.b64decode(request.options))  # of the referee, which is ours
        posed = [
            {one.name: sheets.tensor_of(inputs, one).to(device) for one in question}
            for question in request.questions
        ]
        made = _Made(request, item, posed, by_set, device)
        warm_up_s = made.warm_up_s() if request.again else 0.0
        gradients = _gradients(request, made, device, report)
        for index, answer in enumerate(request.answers):
            rooms = {sheet.name: sheets.tensor_of(outputs, sheet) for sheet in answer}
            results = made.results(index, gradients)
            for name, room in rooms.items():
                value = parity.check_form(name, results[name], room, posed[index])
                room.copy_(value.detach())
    except (OSError, sheets.NoSheet) as error:
        return Examined(status=Status.CRASHED, reason=str(error))
    except Failure as failure:
        state.restore(settings)
        return Examined(status=failure.status, reason=failure.reason)
    if changed := state.restore(settings):
        reason = f"it changed settings of the process: {changed}"
        return Examined(status=Status.WRONG, reason=reason)
    if not request.again:
        return Examined()
    begun = now_s()
    took_s = sum(made.again_s(index, gradients) for index in range(len(posed)))
    besides_s = warm_up_s + now_s() - begun
    return Examined(own_ms=took_s * 1e3 / len(posed), besides_ms=besides_s * 1e3)


def _of_the_referee(path: str) -> mmap.mmap:
    """Its file, of which each process that maps it has its own."""
    return sheets.mapping(Path(path), Path(path).stat().st_size, private=True)


def _gradients(
    request: Examine, made: _Made, device: str, report: Callable[[Step], None]
) -> Sequence[Tensor | None]:
    """Of the outputs, by set. In a backward the forwards come first, which are not its time."""
    if not request.gradients:
        return [None] * len(request.questions)
    if request.case.direction is Direction.BACKWARD:
        made.forwards()
        report(Step(phase=NEW_GRADIENTS, implementation=request.implementation))
    gradient = _of_the_referee(request.gradient)
    return [sheets.tensor_of(gradient, one).to(device) for one in request.gradients]


class _Made:
    """The calls on all sets."""

    def __init__(
        self,
        request: Examine,
        item: Implementation,
        posed: Sequence[dict[str, Tensor]],
        options: Sequence[dict[str, Any]],
        device: str,
    ) -> None:
        self._item, self._device, self._posed, self._options = item, device, posed, options
        self._wanted = [sheet.name[1:] for sheet in request.answers[0] if sheet.name != OUTPUT]
        self._forwards: dict[int, tuple[Any, list[Tensor]]] = {}
        self._are_ahead = False
        self._is_of_backward = request.case.direction is Direction.BACKWARD

    def warm_up_s(self) -> float:
        """How long the first call takes, which imports and compiles. Those of a candidate come
        before it is looked at."""
        begun = now_s()
        out, wanted = self._guarded(partial(self._forward, 0))
        if wanted:
            torch.autograd.grad(out, wanted, torch.zeros_like(out), allow_unused=True)
        # What comes before a backward is not timed.
        return 0.0 if self._is_of_backward else now_s() - begun

    def forwards(self) -> None:
        """Make all that come before a backward."""
        self._are_ahead = True
        for index in range(len(self._posed)):
            self._forwards[index] = self._guarded(partial(self._forward, index))

    def results(self, index: int, gradients: Sequence[Tensor | None]) -> Results:
        """Of a set, by name. Raises `Failure`."""
        results: Results = self._guarded(partial(self._results, index, gradients[index]))
        return results

    def again_s(self, index: int, gradients: Sequence[Tensor | None]) -> float:
        """How long it takes once more, but for the forward of a backward."""
        if self._are_ahead:
            self._forwards[index] = self._forward(index)
        begun = now_s()
        self.results(index, gradients)
        return now_s() - begun

    def _guarded(self, call: Callable[[], Any]) -> Any:
        return guarded(call, self._device, self._item.name)

    def _forward(self, index: int) -> tuple[Any, list[Tensor]]:
        leaves = {
            name: tensor.detach().requires_grad_(name in self._wanted)
            for name, tensor in self._posed[index].items()
        }
        out = self._item.call(*leaves.values(), **self._options[index])
        if self._wanted:
            calls.refuse_without_backward(out)
        return out, [leaves[name] for name in self._wanted]

    def _results(self, index: int, grad_out: Tensor | None) -> Results:
        if grad_out is None:
            return {OUTPUT: self._item.call(*self._posed[index].values(), **self._options[index])}
        ahead = index in self._forwards
        out, wanted = self._forwards.pop(index) if ahead else self._forward(index)
        gradients = torch.autograd.grad(out, wanted, grad_out, allow_unused=True)
        named = {f"d{name}": one for name, one in zip(self._wanted, gradients, strict=True)}
        return {OUTPUT: out.detach(), **named}
