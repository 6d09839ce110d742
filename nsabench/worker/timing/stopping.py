"""Decide when enough samples were taken: a class for each rule of a matrix.

A rule is asked after each round with the times so far, of the same length for all active arms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nsabench.model.case import FixedCount, RatioCI, Stopping
from nsabench.verdicts.statistics import MIN_ROUNDS_EVER, quantile, ratio_of_medians

STOP_RESAMPLES = 200  # fewer than for a verdict
CONTENDER_MARGIN = 1.1  # a slower baseline cannot become the best one
HOPELESS = 3.0  # multiple of the best baseline's time


@dataclass
class StopAtRatioCI:
    """Stops when every candidate's ratio to the best baseline is known well enough.

    After `MIN_ROUNDS_EVER` rounds the arms that are hopelessly behind the best baseline leave,
    except candidates. Then the budget begins. After `min_rounds` only candidates and the baselines
    near the best one stay, and the second best one unless it takes half of the budget: a check may
    yet reject the best one. Alternatives are compared with each other in the same way.
    """

    model: RatioCI
    candidates: set[str]
    baselines: set[str]
    alternatives: set[str]

    def __post_init__(self) -> None:
        self._rivals = [kind for kind in (self.baselines, self.alternatives) if kind]
        self._next_look = self.model.min_rounds
        self._began_s = 0.0

    def enough(self, rounds: int, elapsed_s: float, times: Mapping[str, Sequence[float]]) -> bool:
        if rounds == MIN_ROUNDS_EVER:
            self._began_s = elapsed_s
        spent_s = elapsed_s - self._began_s
        if rounds < self.model.min_rounds:
            # A slow candidate must not use up the time of later cases.
            return rounds > MIN_ROUNDS_EVER and spent_s >= 2 * self.model.budget_s
        if rounds >= self.model.max_rounds or spent_s >= self.model.budget_s:
            return True
        if rounds < self._next_look:
            return False
        self._next_look = rounds + max(10, rounds // 4)
        best = [ranked[0] for kind in self._rivals if (ranked := self._rank(kind, rounds, times))]
        return all(
            ratio_of_medians(times[b], times[c], resamples=STOP_RESAMPLES).width < self.model.width
            for b in best
            for c in self.candidates & set(times)
        )

    def active(self, rounds: int, times: Mapping[str, Sequence[float]]) -> set[str]:
        ranked = [r for kind in self._rivals if (r := self._rank(kind, rounds, times))]
        if rounds < MIN_ROUNDS_EVER or not ranked:
            return set(times)
        kinds = set().union(*self._rivals)
        needed = {arm for arms in ranked for arm in self._find_needed(arms, rounds, times, kinds)}
        return self.candidates & set(times) | needed

    def _find_needed(
        self, ranked: list[str], rounds: int, times: Mapping[str, Sequence[float]], kinds: set[str]
    ) -> set[str]:
        early = rounds < self.model.min_rounds
        limit = (HOPELESS if early else CONTENDER_MARGIN) * quantile(times[ranked[0]], 0.5)
        spare = {arm for arm in ranked[1:2] if sum(times[arm]) / 1e3 < self.model.budget_s / 2}
        own = set(ranked) | (set(times) - kinds if early else set())
        return spare | {
            arm
            for arm, samples in times.items()
            if arm in own
            and len(samples) == rounds
            # A few samples may all be disturbed, but a slow arm is slow in each of them.
            and (min(samples) if early else quantile(samples, 0.5)) <= limit
        }

    @staticmethod
    def _rank(kind: set[str], rounds: int, times: Mapping[str, Sequence[float]]) -> list[str]:
        medians = {
            arm: quantile(times[arm], 0.5)
            for arm in kind & set(times)
            if len(times[arm]) == rounds > 0
        }
        return sorted(medians, key=lambda arm: (medians[arm], arm))


@dataclass
class StopAtCount:
    model: FixedCount

    def enough(self, rounds: int, elapsed_s: float, times: Mapping[str, Sequence[float]]) -> bool:
        return rounds >= self.model.rounds

    def active(self, rounds: int, times: Mapping[str, Sequence[float]]) -> set[str]:
        return set(times)


Rule = StopAtRatioCI | StopAtCount


def build(
    model: Stopping, candidates: set[str], baselines: set[str], alternatives: set[str]
) -> Rule:
    if isinstance(model, FixedCount):
        return StopAtCount(model)
    return StopAtRatioCI(model, candidates, baselines, alternatives)
