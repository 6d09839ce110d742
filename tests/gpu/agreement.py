"""Do two runs of one plan say the same? What the bars of a fleet ask of a run on two GPUs.

    nsabench compare ONE TWO --json > compared.json
    python -m tests.gpu.agreement compared.json...

The verdicts of candidates must agree in 97 % of the cells, and the medians of everything that is
not a control, as the tables show them, lie within 3 % of each other in 95 %. Exits with 1 where
they do not. How many do without the timer's own share is told beside it, and nothing is asked of
it: two processes on one GPU agree in 85 to 93 % of those (notes/run_time.md). Comparisons of
parts of a plan count together.
"""

from __future__ import annotations

import json
import operator
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import reduce
from pathlib import Path
from typing import Any

VERDICTS, MEDIANS = 0.97, 0.95
APART = 0.03


@dataclass(frozen=True)
class Agreement:
    """cells, times: how many there were to be held to each other. device_times: that lie as near as
    the medians must, of the same, without the timer's share."""

    verdicts: int
    cells: int
    medians: int
    times: int
    device_times: int

    @property
    def holds(self) -> bool:
        return (
            0 < VERDICTS * self.cells <= self.verdicts and 0 < MEDIANS * self.times <= self.medians
        )

    def __add__(self, other: Agreement) -> Agreement:
        return Agreement(*map(operator.add, astuple(self), astuple(other)))

    def __str__(self) -> str:
        return (
            f"verdicts agree in {self.verdicts} of {self.cells} cells "
            f"({self.verdicts / max(self.cells, 1):.1%}, at least {VERDICTS:.0%} is asked for); "
            f"{self.medians} of {self.times} medians within {APART:.0%} "
            f"({self.medians / max(self.times, 1):.1%}, {MEDIANS:.0%}), "
            f"{self.device_times} without the timer's share"
        )


def of(comparison: Mapping[str, Any]) -> Agreement:
    """What a comparison of two runs says. Raises `ValueError` for one of more or fewer."""
    if len(comparison["runs"]) != 2:
        raise ValueError(f"{len(comparison['runs'])} runs are compared, not two")
    cells: Sequence[Mapping[str, Any]] = comparison["cells"]
    judged = [
        (one["verdict"], two["verdict"])
        for one, two in (cell["runs"] for cell in cells)
        if one["verdict"] is not None or two["verdict"] is not None
    ]
    timed = [
        cell
        for cell in cells
        if cell["role"] != "control" and cell["later"][0]["ratio"] is not None
    ]
    medians = [operator.truediv(*(run["median_ms"] for run in cell["runs"])) for cell in timed]
    return Agreement(
        verdicts=sum(one == two for one, two in judged),
        cells=len(judged),
        medians=_near(medians),
        times=len(timed),
        device_times=_near(cell["later"][0]["ratio"] for cell in timed),
    )


def _near(ratios: Iterable[float]) -> int:
    return sum(max(ratio, 1 / ratio) <= 1 + APART for ratio in ratios)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.exit(__doc__)
    found = reduce(operator.add, (of(json.loads(Path(file).read_text())) for file in sys.argv[1:]))
    print(found)
    sys.exit(0 if found.holds else 1)
