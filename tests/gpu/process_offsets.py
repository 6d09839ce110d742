"""How differently do two processes treat two implementations? From the logs of finished runs.

    python -m tests.gpu.process_offsets RUN...

Prints the standard deviation between processes of the ratio of two medians, and how much of it the
rounds of one process explain. In a run of `process_offsets.yaml` the two are one implementation.
In any other run they are a candidate and its baseline, in the main process and in a second one.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np

from nsabench.model.log import Log
from nsabench.model.measurement import Observation
from nsabench.model.vocabulary import Purpose, Regime
from nsabench.running.log import read

SELF = ("self_baseline", "self_candidate")
RESAMPLES = 400


def log_ratio(one: Observation, other: Observation, regime: Regime) -> tuple[float, float] | None:
    """Return the logarithm of the ratio of two medians and its standard error, in one process."""
    times = [np.array(o.timings(regime).time_ms) for o in (one, other)]
    rounds = min(map(len, times))
    if rounds < 5:
        return None
    a, b = (x[:rounds] for x in times)
    pick = np.random.default_rng(0).integers(0, rounds, (RESAMPLES, rounds))
    drawn = np.log(np.median(a[pick], axis=1) / np.median(b[pick], axis=1))
    return math.log(np.median(a) / np.median(b)), float(drawn.std())


def of_processes(log: Log, regime: Regime) -> Iterator[tuple[str, float, float]]:
    """Yield (group, difference between two processes, standard error) of each pair."""
    seen: dict[str, dict[Purpose, dict[str, Observation]]] = defaultdict(dict)
    lengths: dict[str, int] = {}
    for attempt in log.attempts:
        case = attempt.job.case
        named = {o.implementation: o for o in attempt.observations}
        seen[case.id][attempt.job.purpose] = named
        lengths[case.id] = case.shape.get("L", 0)
    for case_id, purposes in seen.items():
        main = purposes.get(Purpose.MAIN, {})
        if all(name in main for name in SELF):
            ratio = log_ratio(main[SELF[0]], main[SELF[1]], regime)
            if ratio:
                yield f"itself, L={lengths[case_id]}", *ratio
            continue
        second = purposes.get(Purpose.CONFIRMATION, {})
        for one, other in combinations(sorted(main.keys() & second.keys()), 2):
            first = log_ratio(main[one], main[other], regime)
            again = log_ratio(second[one], second[other], regime)
            if first and again:
                # Both processes moved it, so each moved it by less.
                error = math.hypot(first[1], again[1])
                yield "another", (first[0] - again[0]) / math.sqrt(2), error / math.sqrt(2)


def main(folders: list[str]) -> None:
    for folder in map(Path, folders):
        log = read(folder / "log.jsonl")
        for regime in (Regime.DEVICE, Regime.QUEUE):
            groups = defaultdict(list)
            for group, *pair in of_processes(log, regime):
                groups[group].append(pair)
            for group, pairs in groups.items():
                moved, error = np.array(pairs).T
                explained = float(np.sqrt((error**2).mean()))
                spread = float(np.sqrt((moved**2).mean()))
                rest = math.sqrt(max(0.0, spread**2 - explained**2))
                print(
                    f"{folder.name}, {regime.value}, {group}: {len(pairs)} ratios differ by "
                    f"{spread:.2%}; rounds explain {explained:.2%}, which leaves {rest:.2%}"
                )


if __name__ == "__main__":
    main(sys.argv[1:])
