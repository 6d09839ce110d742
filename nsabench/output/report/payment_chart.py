from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsabench import ops
from nsabench.model.record import Record
from nsabench.model.vocabulary import Regime
from nsabench.output import grouped
from nsabench.output.report import html
from nsabench.verdicts.break_even import REGIME_NAMES, BreakEven

if TYPE_CHECKING:
    from markupsafe import Markup

Points = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Chart:
    """A chart of one break-even length. `lines` has lengths and times (ms) by name."""

    payment: BreakEven
    lines: Mapping[str, Points]

    @property
    def title(self) -> str:
        return f"{self.payment.what} ({self.payment.regime})"

    @property
    def caption(self) -> str:
        called, axis = REGIME_NAMES[self.payment.regime], self.payment.axis
        return f"{self.payment.sentence}. Median time of a call {called}, in ms over {axis}"

    def draw(self) -> Markup:
        points = [
            {"line": name, "length": length, "ms": ms, "text": f"{name}, {length}: {ms:.4g} ms"}
            for name, line in self.lines.items()
            for length, ms in line
        ]
        return html.draw("payment.vl.json", points, self.payment.axis)


def charts(payments: Sequence[BreakEven], records: Sequence[Record]) -> list[Chart]:
    return [drawn for p in payments if (drawn := _build_chart(p, records)) is not None]


def _build_chart(p: BreakEven, records: Sequence[Record]) -> Chart | None:
    compared = [case for case in p.tested if case.comparison.ratio is not None]
    by_series = grouped(compared, lambda case: ops.series_key(case.record))
    series = max(by_series.values(), key=len, default=[])
    if len(series) < 2:
        return None
    by_key = {r.key: r for r in records}
    op_records = [case.record for case in series]
    alternatives = [by_key[case.record.case_id, case.comparison.against] for case in series]
    lines = {
        p.op: _list_points(op_records, p.regime),
        "best alternative": _list_points(alternatives, p.regime),
    }
    return Chart(p, lines)


def _list_points(records: Sequence[Record], regime: Regime) -> Points:
    timed = [(r.length, ms) for r in records if (ms := r.timed_in(regime))]
    lengths = grouped(timed, lambda point: point[0])
    return tuple((length, min(ms for _, ms in lengths[length])) for length in sorted(lengths))
