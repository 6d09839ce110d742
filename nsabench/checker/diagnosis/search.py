"""Find the known mistake that comes nearest to a wrong result; `mistakes.toml` describes each."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from time import thread_time

import torch
from torch import Tensor

from nsabench import ops
from nsabench.machine.clock import now_s
from nsabench.ops import Op

TIME_LIMIT_S = 2.0  # seconds of CPU time, so that a busy machine does not cut a search short
BUSY = 10.0  # the limit of wall time is this multiple of the limit of CPU time
EXPLAINS = 0.2  # An explanation leaves at most this share of the error.
SURE = 0.01  # The search ends at a hypothesis that leaves at most this share.
BETTER = 0.9  # A better hypothesis leaves less than this share of the least earlier error.
FAR_OFF = 4.0  # a vector is wrong if its error times this factor reaches the largest error
EVERYWHERE = "every part of it"
ROUNDING, SMALL = 4.0, 64.0


@dataclass(frozen=True)
class Diagnosis:
    id: str = ""
    mistake: str = ""
    advice: str = ""

    @property
    def text(self) -> str:
        return f"{self.mistake}: {self.advice}" if self.advice else self.mistake

    def surrounded(self, before: str = "", after: str = "") -> Diagnosis:
        return replace(self, mistake=before + self.mistake + after)


def mistake(name: str, **values: object) -> Diagnosis:
    sentence, _, advice = read_sentences()[name].partition(": ")
    return Diagnosis(name, sentence.format(**values), advice.format(**values))


@cache
def read_sentences() -> dict[str, str]:
    return tomllib.loads((files(__package__) / "mistakes.toml").read_text("utf-8"))


# A mistake, and a function that computes its float64 result.
Hypothesis = tuple[Diagnosis, Callable[[], Tensor]]


def explain(
    hypotheses: Iterable[Hypothesis],
    measure_error: Callable[[Tensor], float],
    right: Tensor,
    vector_errors: Tensor,
    time_limit_s: float,
) -> Diagnosis | None:
    """Return the mistake whose result is nearest, with its place and error; None if none is near.

    A mistake that leaves hardly any error ends the search, and so does the time limit.

    measure_error: returns the error of the wrong result against a prediction, or against `right`.
    vector_errors: the error of each vector of the full result.
    """
    off, best, error = measure_error(right), None, float("inf")
    end, last = thread_time() + time_limit_s, now_s() + BUSY * time_limit_s
    for diagnosis, predict in hypotheses:
        tried = measure_error(predict())
        if tried < BETTER * error:
            best, error = diagnosis, tried
        if error <= SURE * off or thread_time() > end or now_s() > last:
            break
    if best is None or error > EXPLAINS * off:
        return None
    # Vector errors of ROUNDING times the error left, or 1 / SMALL of the largest, may be rounding.
    where = locate(vector_errors > max(ROUNDING * error, float(vector_errors.max()) / SMALL))
    where = "" if where == EVERYWHERE else f" in {where}"
    errors = f" (mean error {off:.3g}, and {error:.2g} if the oracle makes this mistake)"
    return best.surrounded(after=where + errors)


def blank_left_out(op: Op, result: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    if not op.samples_queries:
        return result, right
    left_out = ~ops.compared(right).unsqueeze(-1)
    return result.masked_fill(left_out, 0.0), right.masked_fill(left_out, 0.0)


def locate_not_finite(result: Tensor) -> Diagnosis | None:
    bad = ~torch.isfinite(result)
    if not bad.any():
        return None
    return mistake("not-finite", count=int(bad.sum()), total=bad.numel(), where=locate(bad))


def locate_worst(off: Tensor, result: str = "the output") -> Diagnosis:
    return mistake("unexplained", result=result, where=locate(off >= off.max() / FAR_OFF))


def locate(marked: Tensor) -> str:
    """Return the extent of the marked elements, such as `dimension 0 (size 9): index 6 to 8`."""
    parts = []
    for axis, size in enumerate(marked.shape):
        others = [other for other in range(marked.dim()) if other != axis]
        marks = torch.nonzero(marked.sum(others) if others else marked).flatten().tolist()
        if marks and len(marks) < size:
            span = f"index {marks[0]}" + (f" to {marks[-1]}" if len(marks) > 1 else "")
            gaps = "" if len(marks) == marks[-1] - marks[0] + 1 else f" ({len(marks)} of them)"
            parts.append(f"dimension {axis} (size {size}): {span}{gaps}")
    return ", ".join(parts) or EVERYWHERE


def find_unwritten(result: Tensor, right: Tensor, off: Tensor) -> Tensor | None:
    zeros = (result == 0) & (right != 0)
    return zeros if zeros.any() and is_all(off, zeros) else None


def find_factor(result: Tensor, right: Tensor) -> float:
    """Return the number by which `right` must be multiplied to be nearest to the result."""
    square = float(right.square().sum())
    return float((result * right).sum()) / square if square else 0.0


def is_all(off: Tensor, marked: Tensor) -> bool:
    rest = off.masked_fill(marked, 0.0).mean(-1)
    return float(rest.max()) <= float(off.mean(-1).max()) / SMALL
