"""What a run found wrong in public libraries, as their own trackers could use it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from nsabench.assessment import labels
from nsabench.machine.environment.pairs import belongs
from nsabench.model.record import Record
from nsabench.model.vocabulary import BENIGN, Role, Status
from nsabench.packages.catalogue import CATALOGUE
from nsabench.text import code, fenced, markdown, shown

MOST = 6  # cases that an entry lists

_Key = tuple[str, str, str, str, str, str]


def render(records: Sequence[Record], run: str) -> str:
    """Markdown: an entry a library, implementation and fault. run: the folder, for its commands.

    records: of one run; those that are not ok and call a library are told of.
    """
    groups = _grouped(records)
    if not groups:
        return "No library was wrong, and none failed, in this run.\n"
    return "\n".join(
        line for key in sorted(groups) for line in _entry(key, groups[key], records, run)
    )


def as_data(records: Sequence[Record]) -> list[dict[str, Any]]:
    """The same for programs: an entry each, with the ids of its cases."""
    names = ("package", "implementation", "op", "direction", "status", "why")
    groups = _grouped(records)
    return [
        {
            **dict(zip(names, key, strict=True)),
            "package_version": groups[key][0].package_version,
            "licence": groups[key][0].licence,
            "reason": groups[key][0].reason,
            "cases": [r.case_id for r in groups[key]],
        }
        for key in sorted(groups)
    ]


def _grouped(records: Sequence[Record]) -> dict[_Key, list[Record]]:
    """What is not ok and calls a library, by library, implementation and fault."""
    groups: dict[_Key, list[Record]] = {}
    for r in records:
        if r.package and r.role is not Role.CONTROL and r.status not in BENIGN:
            why = r.diagnosis or (r.status.value if r.status is Status.WRONG else r.reason)
            key = (r.package, r.implementation, r.op, str(r.direction), r.status.value, why)
            groups.setdefault(key, []).append(r)
    return groups


def _entry(key: _Key, rows: Sequence[Record], records: Sequence[Record], run: str) -> Iterator[str]:
    package, implementation, op, direction, status, why = key
    first = rows[0]
    yield f"## {markdown(package)}: {markdown(op)} {direction} is {status.replace('_', ' ')}"
    yield ""
    yield from _what(first)
    diagnosed = f": {markdown(why)}" if why != status else ", and no known mistake reproduces it"
    yield f"- what is wrong{diagnosed}"
    if first.reason and first.reason != why:
        yield f"- how it was found: {markdown(first.reason)}"
    ran = [r for r in records if _like(r, first)]
    yield f"- where: {len(rows)} of the {len(ran)} cases that it ran here"
    yield ""
    yield "| case | MAE | relative L2 | worst row | at |"
    yield "|---|---|---|---|---|"
    for r in rows[:MOST]:
        errors = (_number(e) for e in (r.mae, r.rel_l2, r.worst_row))
        yield f"| {' | '.join([markdown(labels.case(r)), *errors, markdown(r.worst_row_at)])} |"
    if len(rows) > MOST:
        yield f"\nand {len(rows) - MOST} more."
    yield ""
    yield (
        "Errors are against a float64 oracle on the same inputs. A file that reproduces the first "
        "case alone:"
    )
    yield ""
    named = " ".join(shlex.quote(shown(x)) for x in (run, first.case_id, implementation))
    yield fenced(f"nsabench profile {named} --script alone.py", "sh")
    yield ""


def _what(r: Record) -> Iterator[str]:
    site = next((p.site for p in CATALOGUE if p.name == r.package), "")
    named = [markdown(x) for x in (r.package, r.package_version, r.licence) if x]
    library = ", ".join([*named, *([site] if site else [])])  # a link of the catalogue's own
    yield f"- library: {library}; called as {code(r.implementation)}"
    said = {"torch": r.torch, "Triton": r.triton, "CUDA": r.cuda}
    versions = [f"{name} {markdown(value)}" for name, value in said.items() if value]
    other = belongs(r.torch, r.triton)
    yield f"- on: {', '.join([markdown(r.gpu_name) or 'a CPU', *versions])}" + (
        f" ({other})" if other else ""
    )


def _like(r: Record, first: Record) -> bool:
    """Whether it is of the same implementation, op and direction, and ran."""
    same = (r.implementation, r.op, r.direction) == (
        first.implementation,
        first.op,
        first.direction,
    )
    return same and r.status not in (Status.UNSUPPORTED, Status.SKIPPED)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2e}"
