"""Fewer cases and candidates than a matrix spans, as the command line asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nsabench.errors import UsageError
from nsabench.model.plan import ImplementationInfo, Plan
from nsabench.model.vocabulary import Role, Runs
from nsabench.planning import matrix, resolve
from nsabench.planning.narrow import Narrowed

MATRIX = (
    "op: selection_rows\naxes: {N: 2, H: 1, D: [64, 128], L: [256, 512, 1024], "
    "dtype: [float16, bfloat16]}\n"
)


def info(name: str, role: Role) -> ImplementationInfo:
    return ImplementationInfo(
        op="selection_rows", name=name, role=role, devices=(Runs.CPU,), source="x"
    )


INSTALLED = [
    info("mine", Role.CANDIDATE),
    info("rows_cuda", Role.CANDIDATE),
    info("sdpa_gqa", Role.BASELINE),
]


def planned(tmp_path: Path, *where: str, only: tuple[str, ...] = (), **more: Any) -> Plan:
    path = tmp_path / "m.yaml"
    path.write_text(MATRIX)
    narrowed = Narrowed(where, only)
    return resolve.resolve(matrix.load(path), INSTALLED, device="cpu", narrowed=narrowed, **more)


@pytest.mark.parametrize(
    ("where", "cases"),
    [
        (["D=128 and L>=512"], 4),
        (["D == 128", "L<512"], 2),
        (["D!=128, dtype=fp16"], 3),
        (["op=selection_rows"], 12),
    ],
)
def test_conditions_hold_together(tmp_path: Path, where: list[str], cases: int) -> None:
    assert len(planned(tmp_path, *where).cases) == cases


def test_only_names_candidates_and_leaves_the_baselines(tmp_path: Path) -> None:
    plan = planned(tmp_path, only=("mi*",))
    assert {c.implementations for c in plan.cases} == {("mine", "sdpa_gqa")}


@pytest.mark.parametrize(
    ("given", "sentence", "remedy"),
    [
        ({"where": ["LL>4"]}, "no case has 'LL'", "did you mean 'L'?"),
        ({"where": ["L>4096"]}, "none of the 12 cases meets 'L>4096'", "nsabench plan"),
        ({"where": ["L is 4"]}, "'L is 4' is not a condition", "D=128 and L>=512"),
        ({"where": ["L>many"]}, "L is a number, not 'many'", "give one"),
        ({"only": ("mines",)}, "no candidate is named 'mines'", "--kernels FILE.py; else, did you"),
        ({"only": ("sdpa_*",)}, "no candidate is named 'sdpa_*'", "--kernels FILE.py"),
    ],
)
def test_what_cannot_be_met_is_refused(
    tmp_path: Path, given: dict[str, Any], sentence: str, remedy: str
) -> None:
    with pytest.raises(UsageError) as refused:
        planned(tmp_path, *given.pop("where", ()), **given)
    assert sentence in str(refused.value) and remedy in refused.value.remedy
