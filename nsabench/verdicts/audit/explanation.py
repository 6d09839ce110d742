"""Explain a curve of errors over the length by simulating known mistakes.

Attention over N(0,1) inputs is computed correctly and with a mistake. How the mean absolute
difference depends on L is nearly the same for all inputs, so this curve identifies the mistake.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from nsabench.checks import Effect, Finding
from nsabench.model.record import Record
from nsabench.model.vocabulary import Direction, Role

CHECK = "explanation"
ELEMENTS = 1 << 22  # elements of K in a simulation, which then takes less than 1 s
MOST_ELEMENTS = 1 << 25  # elements of K in one row; longer rows are not simulated
LEAST_POINTS = 3
EXPLAINS = 0.1  # largest mean relative deviation of a simulated curve from the stated curve
SEED = 0

Array = NDArray[np.float32]
Errors = dict[int, float]  # the mean absolute error by length L


def check(rows: Sequence[Record], findings: Sequence[Finding]) -> list[Finding]:
    (d, dv), stated = _find_curve(rows)
    tolerance = max((r.tolerances.mae for r in rows), default=0.0)
    if len(stated) < LEAST_POINTS or max(stated.values()) <= tolerance:
        return []
    simulated: dict[str, Errors] = defaultdict(dict)
    for length in stated:
        for mistake, mae in _simulate(d, dv, length, max(stated)):
            simulated[mistake][length] = mae
    deviations = {
        mistake: _mean_deviation(stated, errors, tolerance)
        for mistake, errors in simulated.items()
        if errors.keys() == stated.keys()
    }
    best = min(deviations, key=lambda mistake: deviations[mistake])
    if deviations[best] > EXPLAINS:
        sentence = (
            f"no simulated mistake explains how the errors depend on the length; the nearest, "
            f"{best}, is off by {deviations[best]:.0%}"
        )
        return [Finding(CHECK, Effect.NOTE, sentence)]
    sentence = (
        f"{_name_culprit(rows, findings)} {best}: that explains the errors over L, simulated "
        f"{_format(simulated[best], stated)}, stated {_format(stated, stated)} at "
        f"L={', '.join(map(str, stated))} (off by {deviations[best]:.1%} on average)"
    )
    return [Finding(CHECK, Effect.WRONG, sentence)]


def _format(errors: Errors, lengths: Iterable[int]) -> str:
    return " ".join(f"{errors[length]:.3f}" for length in lengths)


def _find_curve(rows: Sequence[Record]) -> tuple[tuple[int, int], Errors]:
    """Return D and Dv with the most lengths, and the mean stated error of each length."""
    stated: dict[tuple[int, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        dims = row.shape["D"], row.shape["Dv"]
        if row.mae is None or row.direction is not Direction.FORWARD:
            continue
        if math.isfinite(row.mae) and row.length * max(dims) <= MOST_ELEMENTS:
            stated[dims][row.length].append(row.mae)
    dims = max(stated, key=lambda dims: len(stated[dims]), default=(0, 0))
    return dims, {length: float(np.mean(stated[dims][length])) for length in sorted(stated[dims])}


def _name_culprit(rows: Sequence[Record], findings: Sequence[Finding]) -> str:
    roles = {row.implementation: row.role for row in rows}
    flat = {roles.get(f.implementation) for f in findings if f.check in ("roofline", "scaling")}
    if flat == {Role.BASELINE}:
        return "the baseline"
    return "the candidate" if flat == {Role.CANDIDATE} else "one side"


def _mean_deviation(stated: Errors, simulated: Errors, tolerance: float) -> float:
    """Return the mean relative deviation. Two values within the tolerance agree."""
    off = []
    for key, mae in stated.items():
        guess = simulated[key]
        agree = max(mae, guess) <= tolerance
        off.append(0.0 if agree else min(1.0, abs(mae - guess) / max(mae, guess)))
    return float(np.mean(off))


def _simulate(d: int, dv: int, length: int, longest: int) -> Iterator[tuple[str, float]]:
    """Yield each mistake in words, with its mean absolute error at this size."""
    rows = max(1, min(256, ELEMENTS // (longest * max(d, dv))))
    rng = np.random.default_rng(SEED)
    q = rng.standard_normal((rows, 1, d), dtype=np.float32)
    k = rng.standard_normal((rows, length, d), dtype=np.float32)
    v = rng.standard_normal((rows, length, dv), dtype=np.float32)
    right = _attend(q, k, v, d**-0.5)

    def error(wrong: Array) -> float:
        return float(np.abs(wrong - right).mean())

    for count in 2 ** np.arange(int(math.log2(longest)) + 1):
        text = "read key 0 only" if count == 1 else f"read the first {count} keys"
        yield text, error(_attend(q, k[:, :count], v[:, :count], d**-0.5))
        left = max(length - int(count), 0)
        if left:
            part = _attend(q, k[:, :left], v[:, :left], d**-0.5)
            yield f"left out the last {count} keys", error(part)
    for text, scale in (
        ("used no softmax scale", 1.0),
        ("used 1/D as softmax scale", 1 / d),
        ("left out the factor log2(e) that exp2 needs", math.log(2) / math.sqrt(d)),
    ):
        yield text, error(_attend(q, k, v, scale))
    yield "returned zeros", error(np.zeros_like(right))
    yield "took V of another row", error(_attend(q, k, np.roll(v, 1, 0), d**-0.5))
    if d == dv:
        yield "swapped K and V", error(_attend(q, v, k, d**-0.5))


def _attend(q: Array, k: Array, v: Array, scale: float) -> Array:
    scores = q @ k.swapaxes(1, 2) * np.float32(scale)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    out: Array = (weights / weights.sum(-1, keepdims=True)) @ v
    return out
