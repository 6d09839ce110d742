"""Make calls that fill the caches of compilers. Their inputs are not those that are judged."""

from __future__ import annotations

from functools import partial
from random import Random

from nsabench import ops
from nsabench.delivery import Form
from nsabench.errors import UsageError
from nsabench.failure import Failure
from nsabench.machine.clock import now_s
from nsabench.model.case import Case
from nsabench.model.vocabulary import Status
from nsabench.registry import Implementation
from nsabench.worker import calls
from nsabench.worker.guard import guarded
from nsabench.worker.inputs import InputSets
from nsabench.worker.protocol import Compiled
from nsabench.worker.state import forget_earlier_cases, give_back

SEED = 86028121  # prime; added to the seed of a case, it differs from all seeds of input sets


def compile_case(case: Case, item: Implementation, device: str) -> Compiled:
    """Raises `DeviceLost`."""
    forget_earlier_cases()
    try:
        return _call_twice(ops.computed(case, item.computes), item, device)
    except Failure as failure:
        is_unsupported = failure.status is Status.UNSUPPORTED
        return Compiled(reason=str(failure), is_unsupported=is_unsupported)
    except UsageError as error:  # the op that it computes has no such case
        return Compiled(reason=str(error), is_unsupported=True)
    finally:
        give_back(device)


def _call_twice(case: Case, item: Implementation, device: str) -> Compiled:
    form = Form(sets=1, dtype=case.dtype, results={})
    sets = guarded(partial(InputSets, case, [case.seed + SEED], form, device), device, item.name)

    def call() -> None:
        calls.ready(item, case.direction, sets, 0, Random(case.seed))()

    began = now_s()
    guarded(call, device, item.name)
    first = now_s()
    guarded(call, device, item.name)
    return Compiled(first_s=first - began, second_s=now_s() - first)
