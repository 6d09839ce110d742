"""The report knows no op by name: one that was added yesterday, forward and backward, is shown."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from nsabench import ops
from nsabench.model.case import Case
from nsabench.model.measurement import Observation
from nsabench.model.plan import MatrixInfo, Plan, PlannedCase
from nsabench.model.vocabulary import Direction, DType, Role, Status
from nsabench.ops import Op, Shape, Work, _external
from nsabench.output.report import Facts, write_html, write_markdown
from tests.output.report.browser import Browser
from tests.output.report.conftest import observations_of, run_of, timed
from tests.output.report.test_page import CHARTS, SHOTS
from tests.runs import info

NAME = "block_thing"


class Sizes(Shape):
    T: int
    HQ: int
    block_size: int


class BlockThing(Op):
    """Work that grows with T, nothing at all where T is 1."""

    name = NAME
    arguments = ("q",)
    shape_model = Sizes
    differentiable = ("q",)
    directions = (Direction.FORWARD, Direction.BACKWARD)
    distributions = ("random", "local")
    length_axis = "T"

    def length(self, shape: Shape) -> int:
        assert isinstance(shape, Sizes)
        return shape.T

    def work(self, shape: Shape, dtype: DType, distribution: str, seed: int) -> Work:
        assert isinstance(shape, Sizes)
        return Work(1000 * shape.T, 0 if shape.T == 1 else 90_000 * shape.T)

    backward_work = work

    def draw(self, *_: object) -> None:  # type: ignore[override]
        raise NotImplementedError

    oracle = gradients = draw  # type: ignore[assignment]


@pytest.fixture
def block_thing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_external.from_files, NAME, (BlockThing(), "1" * 64))


@pytest.fixture
def run_of_it(block_thing: None, tmp_path: Path) -> Path:
    """A run of the usual op and of this one, whose candidate's backward crashes at times."""
    cases = [
        Case(
            op=NAME,
            shape={"T": length, "HQ": 64, "block_size": size},
            dtype=DType.BFLOAT16,
            direction=direction,
            distribution=distribution,
            timeout_s=60,
            seed=1,
        )
        for length in (1, 8192)
        for size in (32, 64)
        for direction in (Direction.FORWARD, Direction.BACKWARD)
        for distribution in BlockThing.distributions
    ]
    return run_with(tmp_path / "a-run", cases)


def run_with(folder: Path, cases: Sequence[Case]) -> Path:
    """A run of the usual op, and of more cases of another one."""
    names = {"fused": Role.CANDIDATE, "gather": Role.BASELINE}
    [op] = {case.op for case in cases}

    def change(plan: Plan) -> Plan:
        infos = [info(name, role, op=op) for name, role in names.items()]
        more = [PlannedCase(id=c.id, case=c, implementations=tuple(names)) for c in cases]
        return plan.model_copy(
            update={
                "matrices": [*plan.matrices, MatrixInfo(name="b", file="b", sha256="1" * 64)],
                "implementations": [*plan.implementations, *infos],
                "cases": [*plan.cases, *more],
            }
        )

    def observe(planned: PlannedCase) -> list[Observation]:
        case = planned.case
        if case.op != op:
            return observations_of(case, caught=True)
        ms = 0.5 + ops.get(op).length(ops.sizes(case)) / 1000
        fused = timed("fused", ms / 2)
        if case.direction is Direction.BACKWARD and case.distribution == "local":
            crashed = Status.CRASHED
            fused = Observation(implementation="fused", status=crashed, reason="signal 11")
        return [fused, timed("gather", ms)]

    return run_of(folder, change, observe)


def test_it_is_drawn_with_its_own_sizes(run_of_it: Path, browser: Browser, tmp_path: Path) -> None:
    page = write_html(Facts.read(run_of_it), tmp_path)
    for width in (375, 1440):
        browser.open(page, width=width)
        browser.check(CHARTS, dark=False)
    browser.choose("filter-candidate", "fused")
    browser.screenshot(SHOTS / "report-any-op.png")
    shown = browser.texts("heat")
    assert {
        "block_size=64",  # HQ is 64 everywhere
        "block_size=64 backward",
        "block_size=64 backward local",
        "T",
        "1",
        "8192",
    } <= set(shown)
    assert sum("▲ 2.00" in text for text in shown) == 12
    assert sum("crashed" in text for text in shown) == 4
    browser.choose("filter-direction", "backward")
    assert sum("▲ 2.00" in text for text in browser.texts("heat")) == 4
    assert browser.errors() == [], "work without arithmetic has no place in a roofline"


def test_it_is_told_as_text(run_of_it: Path, tmp_path: Path) -> None:
    text = write_markdown(Facts.read(run_of_it), tmp_path).read_text()
    crashed = [line for line in text.splitlines() if "`fused`" in line and "| crashed |" in line]
    assert len(crashed) == 4
    assert "## block_thing HQ64 bf16" in text
    assert re.search(r"\| 8192 \| 32 \| backward \| local \| `fused` \|", text)
