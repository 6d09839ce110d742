"""What pays as data (`thresholds.yaml`, JSON), as Markdown, and in a line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nsabench.model.vocabulary import Regime
from nsabench.text import code, markdown
from nsabench.verdicts.pays.decide import Payment

# How a caller calls, in words beside the regime.
CALLED = {
    Regime.QUEUE: "from Python",
    Regime.DEVICE: "by its kernels alone",
    Regime.GRAPH: "in a CUDA graph",
}


def as_data(payments: Sequence[Payment]) -> list[dict[str, Any]]:
    return [_payment(p) for p in payments]


def _payment(p: Payment) -> dict[str, Any]:
    by, against = p.used
    return {
        "gpu": p.gpu,
        "op": p.op,
        "direction": str(p.direction),
        "heads": p.heads,
        "regime": str(p.regime),
        "axis": p.axis,
        "answer": str(p.answer),
        "from": p.length,
        "why": p.why,
        "by": by,
        "against": against,
        "crossings": [round(length) for length in p.crossings],
        "cases": [
            {
                "case": c.case_id,
                "length": c.length,
                "implementation": c.implementation,
                "alternative": c.alternative,
                "ratio": c.ratio,
                "lo": c.lo,
                "hi": c.hi,
                "why": c.why,
            }
            for c in p.cells
        ],
    }


def said(p: Payment) -> str:
    """`nsa_attention 64/4 forward (device): pays from T = 32768 on, against dense_flash_attn_4`."""
    _, against = p.used
    head = " ".join(filter(None, (p.op, p.heads, str(p.direction))))
    to = f", against {', '.join(against)}" if against and p.answer != "not decided" else ""
    return f"{head} ({p.regime}): {p.sentence}{to}"


def as_markdown(payments: Sequence[Payment]) -> str:
    """A section a decision: the tested lengths, the weakest case of each, and what stood for it."""
    return "\n".join(line for p in payments for line in _section(p))


def _section(p: Payment) -> list[str]:
    what = " ".join(filter(None, (p.heads, str(p.direction), f"({p.regime})")))
    lines = [
        f"## {code(p.op)} {markdown(what)} on {markdown(p.gpu or 'a CPU')}: {markdown(p.sentence)}",
        "",
        *([f"- {markdown(p.why)}", ""] if p.why else []),
        f"| {p.axis} | cases | pay | weakest ratio | by | against |",
        "|---:|---:|---:|---:|---|---|",
    ]
    for length in sorted({c.length for c in p.cells}):
        cells = [c for c in p.cells if c.length == length]
        known = [c for c in cells if c.lo is not None]
        weakest = min(known, key=lambda c: c.lo or 0.0, default=None)
        pay = sum(c.pays for c in cells)
        if weakest is None:
            lines.append(f"| {length} | {len(cells)} | {pay} | - | - | - |")
            continue
        ratio = f"{weakest.ratio:.2f} [{weakest.lo:.2f}, {weakest.hi:.2f}]"
        by, against = code(weakest.implementation), code(weakest.alternative)
        lines.append(f"| {length} | {len(cells)} | {pay} | {ratio} | {by} | {against} |")
    return [*lines, ""]
