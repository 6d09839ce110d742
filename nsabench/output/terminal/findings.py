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
    *,
    each: bool = False,
) -> None:
    """One line for what a check finds of an implementation, with how often and the last example;
    or `each`. `cases`: ids in words, where there are any."""
    alike: dict[object, list[Finding]] = {}
    for n, finding in enumerate(findings):
        key = (finding.check, finding.effect, finding.implementation)
        # What names no case speaks of the run: each is of its own.
        alike.setdefault(key if finding.case_id and not each else n, []).append(finding)
    for group in alike.values():
        last = group[-1]
        case = cases.get(last.case_id, last.case_id)
        where = " on ".join(part for part in (last.implementation, case) if part)
        often = f"in {len(group)} cases; the last, " if len(group) > 1 else ""
        console.print(
            Text.assemble(
                (f"{last.effect:12}", EFFECT_STYLES.get(last.effect, "dim")),
                f" {shown(last.check)}: {often}",
                (shown(f"{where}: ") if where else "", "bold"),
                shown(last.sentence),
            ),
        )
    if not findings:
        console.print("nothing was found")


def print_counts(findings: Sequence[Finding], console: Console) -> None:
    """How many findings of each check, on one line."""
    counts = Counter((f.effect, f.check) for f in findings)
    words = [f"{n} {check} ({effect})" for (effect, check), n in counts.items()]
    if words:
        console.print("in all: " + ", ".join(words), highlight=False)
