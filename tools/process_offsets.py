"""Measure by how much processes differ: compare one implementation with itself, in 20 processes.

    python -m tools.process_offsets

After each process, this prints the standard deviation, between the processes until then, of the
ratio of two medians, and how much of it the rounds of one process explain.
"""

import math
from collections import defaultdict
from multiprocessing import get_context
from random import Random

import numpy as np

from nsabench import registry
from nsabench.model.case import FixedCount
from nsabench.model.vocabulary import DType, Regime
from nsabench.worker.timing import sampling
from nsabench.worker.timing.cuda import CudaTimer
from tests.checking import a_case, arm_of, sets_of

PROCESSES, ROUNDS, RESAMPLES, WARMUP_S = 20, 150, 400, 0.2
OP, IMPLEMENTATION = "selection_rows", "sdpa_gqa"
SHAPES = (
    {"N": 1024, "H": 8, "D": 64, "Dv": 64, "L": 128},
    {"N": 2048, "H": 8, "D": 128, "Dv": 128, "L": 512},
    {"N": 512, "H": 64, "D": 128, "Dv": 128, "L": 2048},
)


def measure(seed):
    """Return the ratios of this process: a `log_ratio` for each (index of the shape, regime)."""
    item = next(i for i in registry.load() if (i.op, i.name) == (OP, IMPLEMENTATION))
    ratios, timer = {}, CudaTimer()
    for index, shape in enumerate(SHAPES):
        case = a_case(OP, shape, dtype=DType.BFLOAT16)
        sets = sets_of(case, "cuda")
        arms = [arm_of(item, case, sets, Random(2 * seed + n)) for n in range(2)]
        for n, arm in enumerate(arms):
            arm.name = f"arm {n}"
            arm.check()
        out = sampling.Collected()
        for arm in arms:
            sampling.warm_up(arm, timer, WARMUP_S, out)
        rule = sampling.make_rule(
            FixedCount(kind="fixed_count", rounds=ROUNDS), set(), set(), set()
        )
        sampling.take_samples(arms, timer, rule, Random(seed), out)
        call_ms = {name: float(np.median(s.time_ms)) for name, s in out.samples.items()}
        bursts = sampling.take_bursts(arms, timer, call_ms, 0, Random(seed), out.failed)
        assert not out.failed, out.failed
        for regime, times in ((Regime.DEVICE, out.samples), (Regime.QUEUE, bursts)):
            ratios[index, regime] = log_ratio(*(times[arm.name].time_ms for arm in arms))
    return ratios


def log_ratio(one, other):
    """Return the logarithm of the ratio of two medians and its standard error, in one process."""
    rounds = min(len(one), len(other))
    a, b = np.array(one[:rounds]), np.array(other[:rounds])
    pick = np.random.default_rng(0).integers(0, rounds, (RESAMPLES, rounds))
    drawn = np.log(np.median(a[pick], axis=1) / np.median(b[pick], axis=1))
    return math.log(np.median(a) / np.median(b)), float(drawn.std())


def report(groups):
    for (index, regime), ratios in groups.items():
        offsets, errors = np.array(ratios).T
        spread, explained = np.sqrt((offsets**2).mean()), np.sqrt((errors**2).mean())
        rest = math.sqrt(max(0.0, spread**2 - explained**2))
        print(
            f"{SHAPES[index]}, {regime.value}: {len(ratios)} ratios differ from 1 by {spread:.2%}; "
            f"rounds explain {explained:.2%}, which leaves {rest:.2%}",
            flush=True,
        )


def main():
    groups = defaultdict(list)
    for seed in range(PROCESSES):
        with get_context("fork").Pool(1) as process:
            for key, ratio in process.apply(measure, [seed]).items():
                groups[key].append(ratio)
        report(groups)


if __name__ == "__main__":
    main()
