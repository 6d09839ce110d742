"""Select the cases and candidates that `--where` and `--only` ask for."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from nsabench.errors import UsageError
from nsabench.model.case import Case
from nsabench.model.plan import ImplementationInfo, Plan
from nsabench.model.vocabulary import DTYPE_NAMES, Role
from nsabench.planning.matrix import LoadedMatrix
from nsabench.planning.yaml_document import nearest

_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "==": operator.eq,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
_TERM = re.compile(r"\s*(\w+)\s*(<=|>=|!=|==|=|<|>)\s*([\w.-]+)\s*")
Term = tuple[str, str, str]


@dataclass(frozen=True)
class Narrowed:
    where: tuple[str, ...] = ()  # conditions such as `D=128 and L>=512`; all must hold
    only: tuple[str, ...] = ()  # shell patterns on the names of candidates

    @cached_property
    def _terms(self) -> list[Term]:
        return [term for condition in self.where for term in _parse(condition)]

    @cached_property
    def pinned(self) -> frozenset[str]:
        return frozenset(size for size, comparison, _ in self._terms if comparison in ("=", "=="))

    def wants(self, case: Case) -> bool:
        return all(_holds(term, _values(case)) for term in self._terms)

    def plan(self, plan: Plan) -> Plan:
        if not self.where:
            return plan
        self.refuse_unmet([planned.case for planned in plan.cases])
        return plan.narrowed((p for p in plan.cases if self.wants(p.case)), self.where)

    def keep_candidates(
        self, case: Case, names: Sequence[str], implementations: Iterable[ImplementationInfo]
    ) -> tuple[str, ...]:
        candidates = {
            i.name for i in implementations if i.op == case.op and i.role is Role.CANDIDATE
        }
        only = self.only or ("*",)
        return tuple(n for n in names if n not in candidates or matches_any(n, only))

    def refuse_unknown(
        self, matrices: Sequence[LoadedMatrix], implementations: Sequence[ImplementationInfo]
    ) -> None:
        """Raise `UsageError` if no candidate matches a pattern, or no case meets a condition."""
        cases = [case for loaded in matrices for case in loaded.cases]
        self.refuse_unmet(cases)
        ops = {case.op for case in cases}
        names = [i.name for i in implementations if i.op in ops and i.role is Role.CANDIDATE]
        for pattern in self.only:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise UsageError(
                    f"--only: no candidate is named {pattern!r}",
                    "if it is your own, give its file: --kernels FILE.py; else, "
                    + nearest(pattern, names),
                )

    def refuse_unmet(self, cases: Sequence[Case]) -> None:
        """Raise `UsageError` if no case meets all conditions."""
        known = sorted({name for case in cases for name in _values(case)})
        for size, _, _ in self._terms:
            if size not in known:
                raise UsageError(f"--where: no case has {size!r}", nearest(size, known))
        if cases and not any(map(self.wants, cases)):
            raise UsageError(
                f"--where: none of the {len(cases)} cases meets {' and '.join(self.where)!r}",
                "`nsabench plan` lists them.",
            )


ALL = Narrowed()


def matches_any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _parse(condition: str) -> list[Term]:
    terms = []
    for text in re.split(r"\band\b|,", condition):
        match = _TERM.fullmatch(text)
        if match is None:
            raise UsageError(
                f"--where: {text.strip()!r} is not a condition",
                "write conditions as in 'D=128 and L>=512 and dtype=fp16'.",
            )
        terms.append((match[1], match[2], match[3]))
    return terms


def _values(case: Case) -> dict[str, int | str]:
    content = case.content
    return {**content.pop("shape"), **content, "mode": case.mode.value}


def _holds(term: Term, values: Mapping[str, int | str]) -> bool:
    name, comparison, wanted = term
    if name not in values:
        return False
    value = values[name]
    if isinstance(value, str):
        return _COMPARISONS[comparison](value, DTYPE_NAMES.get(wanted, wanted))
    try:
        return _COMPARISONS[comparison](value, float(wanted))
    except ValueError:
        raise UsageError(f"--where: {name} is a number, not {wanted!r}", "give a number.") from None
