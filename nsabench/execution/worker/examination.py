"""Calls on inputs that come from the referee: all that is between the supervisor's two looks at
its clock."""

from __future__ import annotations

import base64
import pickle
from functools import partial
from pathlib import Path

from nsabench.assessment.checks.parity import OUTPUT
from nsabench.execution.failure import Failure
from nsabench.execution.protocol import Examine, Examined
from nsabench.execution.referee import sheets
from nsabench.execution.worker import parity
from nsabench.execution.worker.guard import guarded
from nsabench.model.vocabulary import Status
from nsabench.registry import Implementation


def examine(request: Examine, item: Implementation, device: str) -> Examined:
    """Call `item` on each set of inputs, and write what it returns where the supervisor finds it.

    Raises `DeviceLost` when the device is lost.
    """
    try:
        inputs = sheets.mapping(
            Path(request.inputs), Path(request.inputs).stat().st_size, private=True
        )
        size = sheets.size_of(request.answers)
        outputs = sheets.mapping(Path(request.outputs), size, new=True)
    except (OSError, sheets.NoSheet) as error:
        return Examined(status=Status.CRASHED, reason=str(error))
    try:
        by_set = pickle.loads(base64.b64decode(request.options))  # of the referee, which is ours
        for question, options, answer in zip(
            request.questions, by_set, request.answers, strict=True
        ):
            given = {one.name: sheets.tensor_of(inputs, one) for one in question}
            room = sheets.tensor_of(outputs, answer)
            result = guarded(
                partial(item.call, *given.values(), **options),
                device,
                item.name,
            )
            room.copy_(parity.check_form(OUTPUT, result, room, given).detach())
    except Failure as failure:
        return Examined(status=failure.status, reason=failure.reason)
    return Examined()
