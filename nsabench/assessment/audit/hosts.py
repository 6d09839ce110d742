"""Speed-ups of device times that a caller in Python does not see: it awaits its host.

Where a table gives host times (`ours_host_us`, `host_us`) or launches (`ours_launches`,
`launches`), the time of a call among others is the longer of what device and host take. Lines of
graph mode are left alone: replays have no such host.
"""

from __future__ import annotations

from nsabench.assessment.audit.table import Line, Table, name_of
from nsabench.assessment.checks import Effect, Finding
from nsabench.assessment.checks.host import MORE
from nsabench.model.vocabulary import Mode

CHECK = "host"
# What the driver's own call takes (H200, docs/explanation/regimes.md): no launcher takes less.
LAUNCH_MS = 1.3e-3


def check(table: Table) -> list[Finding]:
    """Lines that quote more than 1 for a candidate that is bound by its host."""
    if not table.candidate or not table.baselines:
        return []
    found = [_check(table, line, table.candidate) for line in table.lines]
    return [finding for finding in found if finding is not None]


def _check(table: Table, line: Line, candidate: str) -> Finding | None:
    mine, host = table.time_ms(line, candidate), host_ms(table, line, candidate)
    timed = [(t, b) for b in table.baselines if (t := table.time_ms(line, b)) is not None]
    if mine is None or host is None or not timed or table.mode(line) is Mode.GRAPH:
        return None
    best_ms, best = min(timed)
    if host <= MORE * mine or best_ms <= mine:
        return None
    theirs = host_ms(table, line, best, own=True)
    seen = "what its baseline takes from there is not said"
    effect = Effect.INCONCLUSIVE
    if theirs is not None:
        ratio = max(best_ms, theirs) / max(mine, host)
        seen = f"there it is {ratio:.2f} times as fast as {name_of(best)}"
        effect = Effect.INCONCLUSIVE if ratio < 1 else Effect.NOTE
    sentence = (
        f"{best_ms / mine:.2f} is the ratio of device times, and the call is bound by its host: "
        f"{host * 1e3:.3g} µs of host for {mine * 1e3:.3g} µs of work. From Python, one behind the "
        f"other, it takes {host * 1e3:.3g} µs at least; {seen}"
    )
    return Finding(CHECK, effect, sentence, table.label(line), name_of(candidate))


def host_ms(table: Table, line: Line, column: str, *, own: bool = False) -> float | None:
    """How long a call of the implementation of a time column holds its host, or does at least by
    its launches. own: a column that names no implementation is not taken for it."""
    names = (name_of(column).lower(), *(() if own else ("",)))
    for name in names:
        if name in table.hosts:
            stated, unit = table.hosts[name]
            value = line.value(stated)
            if value is not None and value > 0:
                return value * unit
    for name in names:
        launches = line.value(table.launches.get(name))
        if launches is not None and launches > 0:
            return launches * LAUNCH_MS
    return None
