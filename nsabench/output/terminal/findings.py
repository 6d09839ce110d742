"""What the checks object to, a line each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.text import Text

from nsabench.assessment.checks.finding import Effect, Finding
from nsabench.text import shown

EFFECT_STYLES = {
    Effect.INVALID: "bold red",
    Effect.WRONG: "bold red",
    Effect.IMPLAUSIBLE: "bold red",
    Effect.INCONCLUSIVE: "yellow",
    Effect.UNPROVEN: "yellow",
}


def print_findings(
    findings: Sequence[Finding],
    cases: Mapping[str, str],
    console: Console,
    most: int | None = None,
) -> None:
    """One line a finding, at most `most` of them. `cases`: ids in words, where there are any."""
    for finding in findings[:most]:
        case = cases.get(finding.case_id, finding.case_id)
        where = " on ".join(part for part in (finding.implementation, case) if part)
        console.print(
            Text.assemble(
                (f"{finding.effect:12}", EFFECT_STYLES.get(finding.effect, "dim")),
                f" {shown(finding.check)}: ",
                (shown(f"{where}: ") if where else "", "bold"),
                shown(finding.sentence),
            ),
        )
    if most is not None and len(findings) > most:
        console.print(f"... and {len(findings) - most} more findings")
    if not findings:
        console.print("nothing was found")


def print_counts(findings: Sequence[Finding], console: Console) -> None:
    """How many findings of each check, on one line."""
    counts = Counter((f.effect, f.check) for f in findings)
    words = [f"{n} {check} ({effect})" for (effect, check), n in counts.items()]
    if words:
        console.print("in all: " + ", ".join(words), highlight=False)
