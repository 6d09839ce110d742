"""Calls on inputs that come from the referee: all that is between the supervisor's two looks at
its clock."""

from __future__ import annotations

import base64
import mmap
import os
import pickle
from collections.abc import Callable, Sequence
from contextlib import closing
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
        outputs = sheets.mapping(Path(request.outputs), sheets.size_of(request.answers), new=True)
        by_set = pickle.loads(base64.b64decode(request.options))  # of the referee, which is ours
        with closing(_Papers(request, device)) as papers:
            made = _Made(request, item, papers, by_set, device)
            warm_up_s = made.warm_up_s() if request.again else 0.0
            if request.case.direction is Direction.BACKWARD:  # its forwards are not its time
                made.forwards()
                report(Step(phase=NEW_GRADIENTS, implementation=request.implementation))
            for index, answer in enumerate(request.answers):
                papers.await_turn(index)
                rooms = {sheet.name: sheets.tensor_of(outputs, sheet) for sheet in answer}
                results = made.results(index)
                for name, room in rooms.items():
                    value = parity.check_form(name, results[name], room, papers.inputs(index))
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
    took_s = sum(map(made.again_s, range(len(request.answers))))
    besides_s = warm_up_s + now_s() - begun
    return Examined(own_ms=took_s * 1e3 / len(request.answers), besides_ms=besides_s * 1e3)


class _Papers:
    """What the referee posed, each set when it is there."""

    def __init__(self, request: Examine, device: str) -> None:
        self._request, self._device = request, device
        self._inputs: dict[int, dict[str, Tensor]] = {}
        self._gradients: dict[int, Tensor] = {}
        self._asked, self._given = -1, -1

    def await_turn(self, index: int) -> None:
        """The answers to the sets before are written: wait for this one."""
        if not index or not self._request.in_turn:
            return
        if self._asked < 0:
            self._asked = os.open(f"{self._request.turns}.asked", os.O_WRONLY | os.O_CLOEXEC)
            self._given = os.open(f"{self._request.turns}.given", os.O_RDONLY | os.O_CLOEXEC)
        os.write(self._asked, b"\n")
        os.read(self._given, 1)

    def close(self) -> None:
        for descriptor in (self._asked, self._given):
            if descriptor >= 0:
                os.close(descriptor)

    def inputs(self, index: int) -> dict[str, Tensor]:
        if index not in self._inputs:
            mapped = self._mapped(self._request.inputs, index)
            self._inputs[index] = {
                one.name: sheets.tensor_of(mapped, one).to(self._device)
                for one in self._request.questions[index]
            }
        return self._inputs[index]

    def gradient(self, index: int) -> Tensor | None:
        """Of the output; None where none is asked."""
        if not self._request.gradients:
            return None
        if index not in self._gradients:
            mapped = self._mapped(self._request.gradient, index)
            found = sheets.tensor_of(mapped, self._request.gradients[index])
            self._gradients[index] = found.to(self._device)
        return self._gradients[index]

    @staticmethod
    def _mapped(stem: str, index: int) -> mmap.mmap:
        """A file of the referee, of which each process that maps it has its own."""
        path = Path(f"{stem}.{index}")
        return sheets.mapping(path, path.stat().st_size, private=True)


class _Made:
    """The calls on all sets."""

    def __init__(
        self,
        request: Examine,
        item: Implementation,
        papers: _Papers,
        options: Sequence[dict[str, Any]],
        device: str,
    ) -> None:
        self._item, self._device, self._papers, self._options = item, device, papers, options
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
        for index in range(len(self._options)):
            self._forwards[index] = self._guarded(partial(self._forward, index))

    def results(self, index: int) -> Results:
        """Of a set, by name. Raises `Failure`."""
        gradient = self._papers.gradient(index)
        results: Results = self._guarded(partial(self._results, index, gradient))
        return results

    def again_s(self, index: int) -> float:
        """How long it takes once more, but for the forward of a backward."""
        if self._are_ahead:
            self._forwards[index] = self._forward(index)
        begun = now_s()
        self.results(index)
        return now_s() - begun

    def _guarded(self, call: Callable[[], Any]) -> Any:
        return guarded(call, self._device, self._item.name)

    def _forward(self, index: int) -> tuple[Any, list[Tensor]]:
        leaves = {
            name: tensor.detach().requires_grad_(name in self._wanted)
            for name, tensor in self._papers.inputs(index).items()
        }
        out = self._item.call(*leaves.values(), **self._options[index])
        if self._wanted:
            calls.refuse_without_backward(out)
        return out, [leaves[name] for name in self._wanted]

    def _results(self, index: int, grad_out: Tensor | None) -> Results:
        if grad_out is None:
            return {
                OUTPUT: self._item.call(
                    *self._papers.inputs(index).values(), **self._options[index]
                )
            }
        ahead = index in self._forwards
        out, wanted = self._forwards.pop(index) if ahead else self._forward(index)
        gradients = torch.autograd.grad(out, wanted, grad_out, allow_unused=True)
        named = {f"d{name}": one for name, one in zip(self._wanted, gradients, strict=True)}
        return {OUTPUT: out.detach(), **named}
