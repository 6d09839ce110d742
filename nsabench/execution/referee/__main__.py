"""The referee: poses inputs that nobody has seen, and judges what came of them.

It imports torch and ops, and no implementation. What it draws from, and the oracle of it, are
nowhere else.
"""

from __future__ import annotations

import argparse
import base64
import pickle
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom

from torch import Tensor

from nsabench import ops
from nsabench.assessment.checks.parity import OUTPUT
from nsabench.errors import NsabenchError
from nsabench.execution.failure import Failure
from nsabench.execution.protocol import (
    EXAMINATION,
    Judge,
    Judged,
    Pose,
    Posed,
    Sandbox,
    Sheet,
    Step,
)
from nsabench.execution.referee import sheets
from nsabench.execution.worker import parity, sandbox
from nsabench.execution.worker.channel import Channel, die_with
from nsabench.model.case import Case

# Of its own time on a core, which nobody takes by keeping the cores busy.
DRAWING_S = 0.3  # after which no further set is drawn
# Outputs that are held to the oracle, chosen at random: all for which there is time, since eight of
# them show one wrong call in sixteen less often than not; and at least so many.
ORACLES_S = 0.3
JUDGED = 8
JUDGED_BACKWARDS = 3  # whose oracle takes a multiple
GRAD_OUT = "grad_out"


def main() -> None:
    parser = argparse.ArgumentParser(prog="nsabench.execution.referee")
    parser.add_argument("--ops", type=Path)
    parser.add_argument("--sandbox", type=Sandbox.model_validate_json, required=True)
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args()
    channel = Channel.claim_stdout()
    die_with(options.parent)
    sandbox.enter(options.sandbox)
    if options.ops is not None:
        ops.load_file(options.ops)
    referee = Referee()
    channel.send(Step(phase="start"))
    for line in sys.stdin.buffer:
        match EXAMINATION.validate_json(line):
            case Pose() as pose:
                channel.send(referee.pose(pose))
            case Judge() as judge:
                channel.send(referee.judge(judge))


@dataclass(frozen=True)
class Truth:
    """What is right for a set of inputs: float64 results by name, and bounds of the rows of the
    output that these leave out."""

    results: dict[str, Tensor]
    legal: ops.Legal | None

    @classmethod
    def of(cls, op: ops.Op, inputs: ops.Inputs, grad_out: Tensor | None) -> Truth:
        if grad_out is None:
            output = op.oracle(inputs)
            return cls({OUTPUT: output}, op.legal(inputs, output))
        output, gradients = op.results(inputs, grad_out)
        results = {f"d{name}": gradients[name] for name in op.differentiable}
        return cls({OUTPUT: output} | results, op.legal(inputs, output))


class Referee:
    """Holds the truth about the inputs that it posed last."""

    def __init__(self) -> None:
        self._random = SystemRandom()
        self._case: Case | None = None
        self._truth: dict[int, Truth] = {}
        self._answers: list[list[Sheet]] = []

    def pose(self, pose: Pose) -> Posed:
        """Draw fresh inputs into a file. What cannot be posed has a reason."""
        try:
            case = ops.computed(pose.case, pose.computes)
            op = ops.get(case.op)
            drawn: list[ops.Inputs] = []
            begun = time.thread_time()
            while not drawn or (len(drawn) < pose.count and time.thread_time() < begun + DRAWING_S):
                drawn.append(
                    op.draw(ops.sizes(case), case.dtype, case.distribution, self._seed(), "cpu")
                )
            grads: list[Tensor] = []
            if case.direction.differentiates:
                grads = [op.draw_grad(inputs, self._seed()) for inputs in drawn]
            options = pickle.dumps([one.options for one in drawn])
            least = JUDGED_BACKWARDS if grads else JUDGED
            self._truth = {}
            begun = time.thread_time()
            for index in self._random.sample(range(len(drawn)), len(drawn)):
                if len(self._truth) >= least and time.thread_time() > begun + ORACLES_S:
                    break
                grad = grads[index] if grads else None
                self._truth[index] = Truth.of(op, drawn[index], grad)
            given_sets = [{n: t.contiguous() for n, t in one.tensors.items()} for one in drawn]
            questions = [_written(pose.path, i, one) for i, one in enumerate(given_sets)]
            gradients = []
            if grads:
                of_sets = [{GRAD_OUT: grad.contiguous()} for grad in grads]
                written = [_written(pose.gradient, i, one) for i, one in enumerate(of_sets)]
                gradients = [one[0] for one in written]
        except (NsabenchError, Failure, sheets.NoSheet, MemoryError, pickle.PicklingError) as error:
            return Posed(reason=str(error) or type(error).__name__)
        given = next(iter(given_sets[0].values()))
        truth = next(iter(self._truth.values())).results
        results = {n: t.new_empty(t.shape, dtype=given.dtype) for n, t in truth.items()}
        self._case = case
        self._answers, size = sheets.lay_out([results] * len(drawn))
        return Posed(
            questions=questions,
            options=base64.b64encode(options).decode(),
            gradients=gradients,
            answers=self._answers,
            answer_bytes=size,
        )

    def _seed(self) -> int:
        return self._random.randrange(1 << 31)

    def judge(self, judge: Judge) -> Judged:
        """Hold the outputs in a file to the oracle."""
        assert self._case is not None
        try:
            size = sheets.size_of(self._answers)
            mapped = sheets.mapping(Path(judge.path), size, private=True)
            errors = [
                parity.check_values(
                    sheet.name,
                    sheets.tensor_of(mapped, sheet),
                    truth.results[sheet.name],
                    self._case,
                    legal=truth.legal if sheet.name == OUTPUT else None,
                )
                for index, truth in self._truth.items()
                for sheet in self._answers[index]
            ]
        except (Failure, sheets.NoSheet) as wrong:
            return Judged(reason=str(wrong))
        worst = parity.Errors.worst(errors)
        return Judged(
            mae=worst.mae,
            max_abs_err=worst.max_abs_err,
            rel_l2=worst.rel_l2,
            worst_row=worst.worst_row,
            worst_row_at=worst.worst_row_at,
        )


def _written(path: str, index: int, tensors: dict[str, Tensor]) -> list[Sheet]:
    """To a file of its own."""
    [found] = sheets.write(Path(f"{path}.{index}"), [tensors])
    return found


if __name__ == "__main__":
    main()
