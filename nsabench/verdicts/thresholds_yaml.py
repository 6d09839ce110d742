"""Write decisions as thresholds.yaml for a gate, and as text for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from nsabench.files import whole
from nsabench.model.vocabulary import Regime
from nsabench.verdicts.break_even import BreakEven
from nsabench.verdicts.threshold import Decision, choose_for_gate, lengths_per_gpu

SCHEMA_VERSION = 1
THRESHOLDS = "thresholds.yaml"
HEAD = """\
# The smallest number of selected keys from which a kernel is worth using, by `nsabench threshold`.
# runtime.sel_triton_min_L: keys by GPU name, for the regime `device`. null, or no entry: never.
# runtime.sel_triton_min_L_by_regime: keys for each regime that was measured. A gate uses `queue`
# for calls from Python. For other calls it uses `graph` or, if that is missing, `device`.
# Both follow the decisions with `gate: true`: for each op the user's own kernel, or else the best.
# pays: the length from which an op is faster than what a model could run instead (dense
# attention), for each direction, head layout and regime.
"""


def as_data(decisions: Sequence[Decision], payments: Sequence[BreakEven] = ()) -> dict[str, Any]:
    of_gate = choose_for_gate(decisions)
    runtime: dict[str, Any]
    runtime = {"sel_triton_min_L": lengths_per_gpu(decisions, Regime.DEVICE) or None}
    by_regime = {r.value: lengths for r in Regime if (lengths := lengths_per_gpu(decisions, r))}
    if by_regime:
        runtime["sel_triton_min_L_by_regime"] = by_regime
    return {
        "schema_version": SCHEMA_VERSION,
        "runtime": runtime,
        "pays": [_break_even_data(p) for p in payments],
        "decisions": [_decision_data(d, gate=d in of_gate) for d in decisions],
    }


def _decision_data(d: Decision, *, gate: bool) -> dict[str, Any]:
    by = d.decided_by
    return {
        "gpu": d.gpu,
        "combo": d.combo,
        "unpaired": d.unpaired,
        "op": d.op,
        "regime": str(d.regime),
        "candidate": d.candidate,
        "own": d.own,
        "gate": gate,  # whether runtime.sel_triton_min_L follows this decision
        "where": list(d.where),
        "margin": d.margin,
        "axis": d.axis,
        "answer": str(d.answer),
        "min_L": d.min_length,
        "reasons": list(d.reasons),
        "notes": list(d.notes),
        "caveats": list(d.caveats),
        "caution": d.caution,
        "cases": d.tested,
        "decided_by": by
        and {
            "case": by.record.case_id,
            "length": by.length,
            "status": str(by.record.status),
            "verdict": by.comparison.verdict and str(by.comparison.verdict),
            "speedup_lo": by.lo,
            "why": by.why,
        },
        "run_id": d.run_id,
    }


def _break_even_data(p: BreakEven) -> dict[str, Any]:
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
        "cases": [
            {
                "case": case.record.case_id,
                "length": case.length,
                "implementation": case.comparison.implementation,
                "alternative": case.comparison.against,
                "ratio": case.comparison.ratio,
                "lo": case.lo,
                "hi": case.comparison.hi,
                "why": case.comparison.reason,
            }
            for case in p.tested
        ],
    }


def as_yaml(decisions: Sequence[Decision], payments: Sequence[BreakEven] = ()) -> str:
    return HEAD + yaml.safe_dump(as_data(decisions, payments), sort_keys=False, width=100)


def write(decisions: Sequence[Decision], path: Path, payments: Sequence[BreakEven] = ()) -> None:
    whole(path, as_yaml(decisions, payments).encode())


def as_text(decisions: Sequence[Decision]) -> str:
    return "\n".join(line for decision in decisions for line in _list_lines(decision))


def _list_lines(d: Decision) -> Iterator[str]:
    yield f"{d.candidate} ({d.op}) on {d.gpu or 'a CPU'}, {d.summary}"
    yield f"  {d.versions}, margin {d.margin:g}, {d.tested} cases"
    yield from (f"  {sentence}" for sentence in [*d.reasons, *d.caveats, *d.notes])
    if d.decided_by is not None:
        by = d.decided_by
        value = "no speed-up" if by.lo is None else f"speedup_lo {by.lo:.3f}"
        why = f" ({by.why})" if by.why else ""
        outcome = f"{by.comparison.verdict or by.record.status}, {value}{why}"
        yield f"  decided by {by.label} at {d.axis} = {by.length}: {outcome}"
