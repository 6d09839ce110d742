"""Plans: shards, which cases controls are measured in, and what a plan binds."""

import hashlib
import json
from pathlib import Path
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsabench import labels
from nsabench.errors import UsageError
from nsabench.model.plan import Plan, PlannedCase
from nsabench.model.source import Source
from nsabench.model.vocabulary import Role, Runs
from nsabench.planning import matrix, resolve
from nsabench.planning.shards import estimate_s, share
from tests.checking import a_case
from tests.runs import info

OP = "sliding_window"
ROWS = (
    "op: selection_rows\naxes: {N: 2, H: 1, D: 8, L: [8, 16, 24, 32], dtype: [float16, float32]}\n"
)
FOUR_LADDERS = ROWS.replace("H: 1", "H: [1, 2]")


OWN, SHIPPED = ({"devices": (Runs.CPU,), "source": s} for s in ("mine.py@123", "shipped"))
INSTALLED = [
    info("mine", Role.CANDIDATE, **OWN),
    info("quick", Role.BASELINE, **SHIPPED),
    info("slow", Role.BASELINE, **SHIPPED),
    info("own", Role.BASELINE, **OWN),
    info("trick", Role.CONTROL, caught_by="timer", wraps="quick", **SHIPPED),
]


def resolved(tmp_path, text=ROWS, wraps="quick", **fields):
    path = tmp_path / "m.yaml"
    path.write_text(text)
    sources = {"shipped": "a" * 64, "mine.py@123": "b" * 64}
    installed = [*INSTALLED[:-1], INSTALLED[-1].model_copy(update={"wraps": wraps})]
    return resolve.resolve(matrix.load(path), installed, device="cpu", sources=sources, **fields)


def planned_case(series, length, rows=2):
    shape = {"N": rows, "H": 1 + series, "D": 8, "Dv": 8, "L": 8 * (1 + length)}
    case = a_case("selection_rows", shape)
    return PlannedCase(id=case.id, case=case, implementations=("mine",))


def heads_of(cases):
    return {c.case.shape["H"] for c in cases}


def deal(cases, count, filled=None):
    return [share(cases, f"{i}/{count}") for i in range(1, 1 + (filled or count))]


# For each series: the number of its cases, and the binary logarithm of their rows.
SERIES = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 20)), min_size=1, max_size=12)


@settings(deadline=None)  # a busy machine must not fail the test
@given(series=SERIES, shards=st.integers(1, 14))
def test_shards_are_a_partition_into_whole_series_in_balance(series, shards):
    # Series may be interleaved in a plan.
    cases = [
        planned_case(number, length, 1 << work)
        for length in range(9)
        for number, (size, work) in enumerate(series)
        if length < size
    ]
    if shards > len(series):
        with pytest.raises(UsageError, match="is empty") as refused:
            share(cases, f"{shards}/{shards}")
        assert f"no more than {len(series)} shards" in refused.value.remedy
    parts = deal(cases, shards, min(shards, len(series)))
    assert all(parts)
    assert sorted(c.id for part in parts for c in part) == sorted(c.id for c in cases)
    assert sum(len(heads_of(part)) for part in parts) == len(series)
    for part in parts:
        assert part == [c for c in cases if c in part]  # in the order of the plan
    costs = [[estimate_s(c) for c in cases if c.case.shape["H"] == h] for h in heads_of(cases)]
    longest = max(sum(map(estimate_s, part)) for part in parts)
    # The costliest series are dealt first, so no shard exceeds the mean by more than one series.
    at_most = sum(map(sum, costs)) / len(parts) + max(map(sum, costs))
    assert longest <= 1.02 * at_most + 1e-4


def test_a_series_of_much_work_has_a_shard_of_its_own():
    """One of four series takes as long as the others together."""
    cases = [planned_case(series, n) for series in range(4) for n in range(2)]
    heavy = [planned_case(0, 256 * (1 + n) - 1, 1 << 24) for n in range(2)]
    assert [*map(heads_of, deal(cases, 2))] == [{1, 4}, {2, 3}]
    assert [*map(heads_of, deal([*heavy, *cases[2:]], 2))] == [{1}, {2, 3, 4}]


def test_controls_do_not_outweigh_the_work_of_a_case():
    """Cases of rows have a lower estimate than cases of blocks, even with more implementations."""
    means = []
    for name, implementations in (("selection_rows", 16), ("selection_blocks", 15)):
        cases = [
            PlannedCase(id=case.id, case=case, implementations=("mine",) * implementations)
            for one in resolve.load_matrices([name])
            for case in one.cases
        ]
        means.append(mean(map(estimate_s, cases)))
    rows, blocks = means
    assert rows < blocks


def test_all_shards_of_a_plan_name_one_canary_that_runs_there(tmp_path):
    parts = [resolved(tmp_path, FOUR_LADDERS, shard=f"{i}/4") for i in range(1, 5)]
    [canary] = {part.canary.id for part in parts if part.canary}
    whole = resolved(tmp_path, FOUR_LADDERS)
    assert whole.canary is None and whole.whole == ""
    assert {part.whole for part in parts} == {" ".join(c.id for c in whole.cases)}
    assert canary in whole.by_id
    for part in parts:
        assert any("trick" in c.implementations for c in part.cases), "each has its own controls"
    first = parts[0].canary
    assert first is not None and "trick" not in first.implementations
    assert all(part.info(first.case.op, n) for part in parts for n in first.implementations)


def test_controls_watch_the_least_and_the_most_work_of_each_width(tmp_path):
    """float16 and bfloat16 count as one width: the same check catches a control in both."""
    made = resolved(tmp_path, ROWS.replace("float32]", "bfloat16, float32]"))
    watched = {
        (c.case.dtype, c.case.shape["L"]) for c in made.cases if "trick" in c.implementations
    }
    two_bytes = {("float16", 8), ("bfloat16", 32)}
    assert watched == two_bytes | {("float32", length) for length in (8, 32)}


def test_a_control_is_planned_where_it_concerns_the_case(tmp_path):
    """The least and the most work are chosen among the cases that the control concerns."""

    parity = {"op": OP, "caught_by": "parity", **SHIPPED}
    implementations = [
        info("quick", Role.BASELINE, **{**SHIPPED, "op": OP}),
        info("either", Role.CONTROL, **parity),
        info("output", Role.CONTROL, **parity, directions=("forward",)),
        info("gradient", Role.CONTROL, **parity, directions=("backward",)),
        info("packing", Role.CONTROL, **parity, distributions=("packed",)),
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


def test_what_a_control_wraps_is_measured_beside_it_and_nowhere_else(tmp_path):
    made = resolved(tmp_path, ROWS + "implementations: {only: [mine, slow]}\n")
    for case in made.cases:
        names = set(case.implementations)
        assert names in ({"mine", "slow"}, {"mine", "slow", "trick", "quick"})
        assert ("quick" in names) == ("trick" in names)
        assert case.alongside == (("quick",) if "trick" in names else ())
        assert "quick" not in made.list_clean(case, Role.BASELINE)
    assert made.info("selection_rows", "quick").role is Role.BASELINE
    whole = resolved(tmp_path)
    assert not any(case.alongside for case in whole.cases)


def test_controls_stay_where_the_baseline_that_they_wrap_is_measured(tmp_path):
    """A matrix that skips a slow baseline in long cases also skips its controls there."""
    lengths = "[8, 16, 24, 32]"
    short = ROWS.replace(lengths, "[8, 16]")
    long = ROWS.replace(lengths, "32") + "implementations: {skip: [quick, slow, own]}\n"
    for wraps in ("quick", ""):  # most controls do not say what they wrap
        made = resolved(tmp_path, f"{short}---\n{long}", wraps=wraps)
        assert {c.case.shape["L"] for c in made.cases} == {8, 16, 32}
        watched = {c.case.shape["L"] for c in made.cases if "trick" in c.implementations}
        assert watched == {8, 16}


@pytest.mark.parametrize(
    "selection", ["{only: []}", "{skip: ['*']}", "{only: [slow], skip: [slow]}"]
)
def test_a_matrix_that_leaves_nothing_to_measure_is_refused(tmp_path, selection):
    with pytest.raises(UsageError, match="no implementation of selection_rows is left") as error:
        resolved(tmp_path, f"{ROWS}implementations: {selection}\n")
    assert "m.yaml" in str(error.value)


def test_a_case_of_two_matrices_is_measured_once_as_the_first_says(tmp_path):
    made = resolved(tmp_path, f"{ROWS}timeout_s: 7\n---\n{ROWS}timeout_s: 9\n")
    assert len(made.cases) == 8
    assert {c.case.timeout_s for c in made.cases} == {7}


def test_calls_and_replays_of_a_graph_are_cases_of_their_own(tmp_path):
    """`decode.yaml` asks for both. If they were the same case, the second would be dropped."""
    made = resolved(tmp_path, f"{ROWS}---\n{ROWS}timing: {{mode: graph}}\n")
    calls, replays = made.cases[:8], made.cases[8:]
    assert len({planned.id for planned in made.cases}) == 16
    assert [p.case.shape for p in calls] == [p.case.shape for p in replays]
    one, other = calls[0].case, replays[0].case
    assert labels.case_with_op(other) == f"{labels.case_with_op(one)} graph"
    watched = [p for p in made.cases if "trick" in p.implementations]
    assert {p.case.timing.mode for p in watched} == {"stream", "graph"}


def test_a_plan_is_the_bytes_it_was_written_with(tmp_path):
    made, path = resolved(tmp_path), tmp_path / "plan.json"
    made.write(path)
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".tmp"] == []
    assert Plan.read(path) == made
    assert Plan.read(path).sha256 == made.sha256
    text = path.read_text()
    for old, new in (('"mae": 0.001', '"mae": 0.1'), ('"width": 0.01', '"width": 0.5')):
        assert old in text
        path.write_text(text.replace(old, new, 1))
        altered = Plan.read(path)  # no id depends on what was altered
        assert altered.sha256 != made.sha256


def test_a_plan_holds_the_margin_that_its_verdicts_are_confirmed_at(tmp_path):
    made, path = resolved(tmp_path, margin=1.05), tmp_path / "plan.json"
    made.write(path)
    assert Plan.read(path).margin == 1.05
    path.write_text(path.read_text().replace('"margin": 1.05', '"margin": 0.9'))
    with pytest.raises(UsageError, match="is not the plan of a run"):
        Plan.read(path)


def test_only_what_no_candidate_comes_from_is_imported_apart(tmp_path):
    made = resolved(tmp_path)
    assert made.clean_sources == {"shipped": "a" * 64}
    case = made.cases[1]
    assert made.list_clean(case, Role.BASELINE) == ["quick", "slow"]
    assert made.model_copy(update={"sources": {}}).clean_sources == {}, "derived anew"


def test_a_file_by_its_name_and_digest():
    file = Path("/somewhere/mine@home.py")
    source = Source.from_file(file, b"x = 1")
    digest = hashlib.sha256(b"x = 1").hexdigest()[:12]
    assert source == str(source) == f"mine@home.py@{digest}"
    assert (source.is_file, source.name, source.digest) == (True, "mine@home.py", digest)
    assert source.is_of(Path("elsewhere/mine@home.py"))
    assert not source.is_of(Path("home.py")) and not source.is_of(None)
    assert json.loads(json.dumps({source: "a"})) == {source: "a"}


def test_a_distribution_by_its_name():
    source = Source("nsa-kernels")
    assert (source.is_file, source.name, source.digest) == (False, "nsa-kernels", "")
    assert not source.is_of(Path("nsa-kernels"))
