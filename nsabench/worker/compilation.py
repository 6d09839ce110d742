"""Calls made for what they leave in the caches of compilers: kernels that later calls find there.

Nothing that is judged depends on them. Their inputs are drawn from another seed than any that is
judged, so that a kernel which keeps what it saw keeps what nobody asks for.
"""

from __future__ import annotations

from functools import partial
from random import Random

from torch import Tensor

from nsabench import ops
from nsabench.delivery import OUTPUT, draw
from nsabench.errors import UsageError
from nsabench.failure import Failure
from nsabench.machine.clock import now_s
from nsabench.model.case import Case
from nsabench.model.vocabulary import Status
from nsabench.ops import Inputs
from nsabench.registry import Implementation
from nsabench.worker import calls
from nsabench.worker.guard import guarded
from nsabench.worker.protocol import Compiled
from nsabench.worker.state import forget_earlier_cases, give_back

SEED = 86028121  # prime: a sum of it and a case's seed is no seed of an input set


class _OneSet:
    """One set of inputs, as `calls.ready` takes them."""

    def __init__(self, case: Case, device: str) -> None:
        inputs, grad_out = draw(case, case.seed + SEED, device)
        self.wanted = () if grad_out is None else ops.get(case.op).differentiable
        self.results = tuple(f"d{name}" for name in self.wanted) or (OUTPUT,)
        self.sets: list[Inputs] = [inputs]
        self.grads: list[Tensor] = [] if grad_out is None else [grad_out]


def compile_case(case: Case, item: Implementation, device: str) -> Compiled:
    """Call `item` twice on inputs of the case. Raises `DeviceLost`."""
    forget_earlier_cases(device)
    try:
        return _called_twice(ops.computed(case, item.computes), item, device)
    except Failure as failure:
        is_unsupported = failure.status is Status.UNSUPPORTED
        return Compiled(reason=str(failure), is_unsupported=is_unsupported)
    except UsageError as error:  # the op that it computes has no such case
        return Compiled(reason=str(error), is_unsupported=True)
    finally:
        give_back(device)


def _called_twice(case: Case, item: Implementation, device: str) -> Compiled:
    sets = guarded(partial(_OneSet, case, device), device, item.name)

    def call() -> None:
        calls.ready(item, case.direction, sets, 0, Random(case.seed))()

    began = now_s()
    guarded(call, device, item.name)
    first = now_s()
    guarded(call, device, item.name)
    return Compiled(first_s=first - began, second_s=now_s() - first)
