"""Measure by how much processes differ: compare one implementation with itself, in 20 processes.

    python -m tools.process_offsets FOLDER

After each process, this prints the standard deviation, between the processes until then, of the
ratio of two medians, and how much of it the rounds of one process explain. FOLDER, which must not
exist, gets the log of each process.
"""

import math
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from nsabench.model.vocabulary import Regime
from nsabench.running.planner import make_plan
from tests import main_pass

HERE = Path(__file__).parent
KERNELS = HERE.parent / "tests/gpu/self_check.py"
PROCESSES, RESAMPLES = 20, 400


def log_ratio(one, other, regime):
    """Return the logarithm of the ratio of two medians and its standard error, in one process."""
    times = [np.array(o.timings(regime).time_ms) for o in (one, other)]
    rounds = min(map(len, times))
    a, b = (x[:rounds] for x in times)
    pick = np.random.default_rng(0).integers(0, rounds, (RESAMPLES, rounds))
    drawn = np.log(np.median(a[pick], axis=1) / np.median(b[pick], axis=1))
    return math.log(np.median(a) / np.median(b)), float(drawn.std())


def measure(folder):
    """Yield the list of the states of the three shapes, for each process."""
    plan = make_plan([str(HERE / "process_offsets.yaml")], "cuda", KERNELS)
    for number in range(PROCESSES):
        here = folder / str(number)
        with main_pass.executor_of(plan, here) as executor:
            yield main_pass.measure(plan, here, executor)


def main(folder):
    groups = defaultdict(list)
    for states in measure(folder):
        for state in states:
            pair = [o for o in state.observations if o.implementation.startswith("self_")]
            for regime in (Regime.DEVICE, Regime.QUEUE):
                groups[state.case_id, regime].append(log_ratio(*pair, regime))
        report(groups)


def report(groups):
    for (case_id, regime), ratios in groups.items():
        offsets, errors = np.array(ratios).T
        spread, explained = np.sqrt((offsets**2).mean()), np.sqrt((errors**2).mean())
        rest = math.sqrt(max(0.0, spread**2 - explained**2))
        print(
            f"{case_id}, {regime.value}: {len(ratios)} ratios differ from 1 by {spread:.2%}; "
            f"rounds explain {explained:.2%}, which leaves {rest:.2%}",
            flush=True,
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
