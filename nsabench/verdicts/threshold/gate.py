"""What a gate goes by: of each op on each GPU one kernel, with every combo that was given.

A gate knows one length a GPU, and calls one kernel. So it does not take the best of each combo,
which may be two kernels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from nsabench.model.vocabulary import Regime
from nsabench.verdicts.threshold.decide import Decision, preference

SELECTED = "L"  # the axis of `runtime.sel_triton_min_L`


@dataclass(frozen=True)
class Gate:
    """The kernel that a gate goes by for an op on a GPU. `decisions`: one a combo in which it was
    tested; `better`: the best ones of combos in which another comes first."""

    decisions: list[Decision]
    untested: list[str]  # combos
    better: list[Decision]

    @property
    def min_length(self) -> int | None:
        """The length that holds with every combo; None if there is none."""
        lengths = [decision.min_length for decision in self.decisions]
        if self.untested or None in lengths:
            return None
        return max(length for length in lengths if length is not None)

    @property
    def notes(self) -> Iterator[str]:
        """Notes on the choice."""
        chosen = self.decisions[0]
        where = f"{chosen.op} on {chosen.gpu}, {chosen.regime}: a gate goes by one kernel"
        if self.untested:
            yield (
                f"{where}, here {chosen.candidate}, which was not tested with "
                f"{' and '.join(self.untested)}: no length holds for all that was given"
            )
        for best in self.better:
            yield (
                f"{where} with every combo, here {chosen.candidate}; with {best.combo} "
                f"{best.candidate} is better"
            )


def gates(decisions: Iterable[Decision]) -> list[Gate]:
    """Of each op, regime and GPU one, in the order of the decisions.

    A gate compares selected lengths; ops that are decided on another axis are not its business.
    """
    groups: dict[tuple[str, str, Regime], dict[str, list[Decision]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for decision in decisions:
        if decision.gpu and decision.axis == SELECTED:
            groups[decision.gpu, decision.op, decision.regime][decision.combo].append(decision)
    return [_choose(by_combo) for by_combo in groups.values()]


def _choose(by_combo: dict[str, list[Decision]]) -> Gate:
    """The user's own where there is one, else what was tested with most combos, and of these what
    is best where it is worst."""
    candidates: dict[str, list[Decision]] = defaultdict(list)
    for decision in (d for group in by_combo.values() for d in group):
        candidates[decision.candidate].append(decision)

    def order(of_one: list[Decision]) -> tuple[bool, int, tuple[object, ...]]:
        own = any(decision.own for decision in of_one)
        return not own, -len(of_one), max(map(preference, of_one))

    chosen = min(candidates.values(), key=order)
    tested = {decision.combo for decision in chosen}
    firsts = [min(group, key=preference) for combo, group in by_combo.items() if combo in tested]
    return Gate(
        decisions=chosen,
        untested=[combo for combo in by_combo if combo not in tested],
        better=[first for first in firsts if first not in chosen],
    )


def per_gpu(decisions: Sequence[Decision], regime: Regime = Regime.DEVICE) -> dict[str, int | None]:
    """What a gate may use on each GPU in a regime: it holds for every op and combo given, or is
    None."""
    lengths: dict[str, list[int | None]] = defaultdict(list)
    for gate in gates(decisions):
        if gate.decisions[0].regime is regime:
            lengths[gate.decisions[0].gpu].append(gate.min_length)
    return {
        gpu: None if None in values else max(v for v in values if v is not None)
        for gpu, values in lengths.items()
    }
