"""Plans: shards, who is watched by controls, and what a plan binds."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsabench.assessment import labels
from nsabench.errors import UsageError
from nsabench.execution.passes import isolated_baselines as apart
from nsabench.model.plan import ImplementationInfo, Plan
from nsabench.model.vocabulary import Role, Runs
from nsabench.planning import matrix, resolve

OP = "sliding_window"
ROWS = (
    "op: selection_rows\naxes: {N: 2, H: 1, D: 8, L: [8, 16, 24, 32], dtype: [float16, float32]}\n"
)


def info(name: str, role: Role, source: str = "shipped", **fields: str) -> ImplementationInfo:
    return ImplementationInfo(
        op="selection_rows", name=name, role=role, devices=(Runs.CPU,), source=source, **fields
    )


INSTALLED = [
    info("mine", Role.CANDIDATE, "mine.py@123"),
    info("quick", Role.BASELINE),
    info("slow", Role.BASELINE),
    info("own", Role.BASELINE, "mine.py@123"),
    info("trick", Role.CONTROL, caught_by="timer", wraps="quick"),
]


def resolved(tmp_path: Path, text: str = ROWS, **fields: str) -> Plan:
    path = tmp_path / "m.yaml"
    path.write_text(text)
    sources = {"shipped": "a" * 64, "mine.py@123": "b" * 64}
    return resolve.resolve(matrix.load(path), INSTALLED, device="cpu", sources=sources, **fields)


@given(count=st.integers(1, 40), shards=st.integers(1, 40))
def test_shards_are_a_partition_of_nearly_equal_parts(count: int, shards: int) -> None:
    cases = list(range(count))
    if shards > count:
        with pytest.raises(UsageError, match="is empty"):
            resolve._shard(cases, f"{shards}/{shards}")  # type: ignore[arg-type]
        return
    parts = [resolve._shard(cases, f"{i}/{shards}") for i in range(1, shards + 1)]  # type: ignore[arg-type]
    assert sorted(c for part in parts for c in part) == cases
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_controls_watch_the_least_and_the_most_work_of_each_dtype(tmp_path: Path) -> None:
    made = resolved(tmp_path)
    watched = {
        (c.case.dtype, c.case.shape["L"]) for c in made.cases if "trick" in c.implementations
    }
    assert watched == {(d, length) for d in ("float16", "float32") for length in (8, 32)}


def test_a_control_is_planned_where_it_concerns_the_case(tmp_path: Path) -> None:
    """The least and the most work are those of the cases that it concerns."""

    def control(name: str, **fields: tuple[str, ...]) -> ImplementationInfo:
        return ImplementationInfo.model_validate(
            {**info(name, Role.CONTROL, caught_by="parity").model_dump(), "op": OP, **fields}
        )

    baseline = info("quick", Role.BASELINE).model_copy(update={"op": OP})
    implementations = [
        baseline,
        control("either"),
        control("output", directions=("forward",)),
        control("gradient", directions=("backward",)),
        control("packing", distributions=("packed",)),
    ]
    path = tmp_path / "m.yaml"
    path.write_text(
        f"op: {OP}\ninclude:\n"
        "  - {B: 2, T: [8, 16, 24, 32], HQ: 2, H: 1, D: 8, window: 4, "
        "direction: [forward, backward]}\n"
        "  - {B: 2, T: [16, 20, 24], HQ: 2, H: 1, D: 8, window: 4, distribution: packed}\n"
    )
    planned = resolve.resolve(matrix.load(path), implementations, device="cpu").cases
    found = {
        name: {
            (p.case.distribution, p.case.direction.value, p.case.shape["T"])
            for p in planned
            if name in p.implementations
        }
        for name in ("either", "output", "gradient", "packing")
    }
    forward = {("dense", "forward", 8), ("dense", "forward", 32)}
    backward = {("dense", "backward", 8), ("dense", "backward", 32)}
    assert found["either"] == forward | backward
    assert found["output"] == forward
    assert found["gradient"] == backward
    assert found["packing"] == {("packed", "forward", 16), ("packed", "forward", 24)}


def test_each_shard_has_controls_of_its_own(tmp_path: Path) -> None:
    for i in range(1, 5):
        assert any("trick" in c.implementations for c in resolved(tmp_path, shard=f"{i}/4").cases)


def test_what_a_control_wraps_is_measured_beside_it_and_nowhere_else(tmp_path: Path) -> None:
    made = resolved(tmp_path, ROWS + "implementations: {only: [mine, slow]}\n")
    for case in made.cases:
        names = set(case.implementations)
        assert names in ({"mine", "slow"}, {"mine", "slow", "trick", "quick"})
        assert ("quick" in names) == ("trick" in names)
    assert made.info("selection_rows", "quick").role is Role.BASELINE


@pytest.mark.parametrize(
    "selection", ["{only: []}", "{skip: ['*']}", "{only: [slow], skip: [slow]}"]
)
def test_a_matrix_that_leaves_nothing_to_measure_is_refused(tmp_path: Path, selection: str) -> None:
    with pytest.raises(UsageError, match="no implementation of selection_rows is left") as error:
        resolved(tmp_path, f"{ROWS}implementations: {selection}\n")
    assert "m.yaml" in str(error.value)


def test_a_case_of_two_matrices_is_measured_once_as_the_first_says(tmp_path: Path) -> None:
    made = resolved(tmp_path, f"{ROWS}timeout_s: 7\n---\n{ROWS}timeout_s: 9\n")
    assert len(made.cases) == 8
    assert {c.case.timeout_s for c in made.cases} == {7}


def test_calls_and_replays_of_a_graph_are_cases_of_their_own(tmp_path: Path) -> None:
    """Not the same case twice, of which the second is dropped: `decode.yaml` asks for both."""
    made = resolved(tmp_path, f"{ROWS}---\n{ROWS}timing: {{mode: graph}}\n")
    calls, replays = made.cases[:8], made.cases[8:]
    assert len({planned.id for planned in made.cases}) == 16
    assert [p.case.shape for p in calls] == [p.case.shape for p in replays]
    one, other = calls[0].case, replays[0].case
    assert labels.of_case(other) == f"{labels.of_case(one)} graph"
    watched = [p for p in made.cases if "trick" in p.implementations]
    assert {p.case.timing.mode for p in watched} == {"stream", "graph"}


def test_a_plan_is_the_bytes_it_was_written_with(tmp_path: Path) -> None:
    made, path = resolved(tmp_path), tmp_path / "plan.yaml"
    made.write(path)
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".tmp"] == []
    assert Plan.read(path) == made
    assert Plan.read(path).sha256 == made.sha256
    text = path.read_text()
    for old, new in (("mae: 0.001", "mae: 0.1"), ("width: 0.01", "width: 0.5")):
        assert old in text
        path.write_text(text.replace(old, new, 1))
        altered = Plan.read(path)  # no part of an id: nothing else would notice
        assert altered.sha256 != made.sha256


def test_only_what_no_candidate_comes_from_is_imported_apart(tmp_path: Path) -> None:
    made = resolved(tmp_path)
    assert apart.clean_sources(made) == {"shipped": "a" * 64}
    case = made.cases[1]
    assert apart._clean_baselines(made, case, apart.clean_sources(made)) == ["quick", "slow"]
