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
        computed = ops.computed(case, item.computes)
        form = Form(sets=1, dtype=case.dtype, results={})
        seeds = [case.seed + SEED]
        sets = guarded(partial(InputSets, computed, seeds, form, device), device, item.name)
        began = now_s()
        guarded(partial(_call, computed, item, sets), device, item.name)
        return Compiled(first_s=now_s() - began)
    except (Failure, UsageError) as error:  # the op that it computes may have no such case
        return Compiled(reason=str(error))
    finally:
        give_back(device)


def _call(case: Case, item: Implementation, sets: InputSets) -> None:
    calls.ready(item, case.direction, sets, 0, Random(case.seed))()
