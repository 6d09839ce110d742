"""A comparison is a row, with a baseline that the matrix of its case does not skip."""

from nsabench.model.plan import Plan
from nsabench.model.vocabulary import Catch, Reference, Regime, Role, Status, Verdict
from nsabench.running.folder import RunFolder
from nsabench.verdicts.results import Results, assemble
from nsabench.verdicts.tables import COMPARISONS, RECORDS, read_records, write_tables
from nsabench.verdicts.threshold import decide_run
from tests.runs import Made, change_infos, from_sources, make_run, with_comparison


def add_word(vocabulary, value, monkeypatch):
    """Make an enum accept one more word."""
    word = str.__new__(vocabulary, value)
    word._value_, word._name_ = value, value.upper()
    monkeypatch.setattr(vocabulary, "_missing_", lambda read: word if read == value else None)
    return word


def test_another_regime_or_reference_is_only_a_value(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run", Made(ratio=lambda _: 0.5))
    before = read_records(run)
    loop = add_word(Regime, "loop", monkeypatch)
    goal = add_word(Reference, "goal", monkeypatch)
    faster = {"verdict": Verdict.FASTER, "lo": 1.5}
    grown = [
        with_comparison(with_comparison(r, loop, **faster), r.regime, goal, ratio=0.9)
        if r.role is Role.CANDIDATE
        else r
        for r in before
    ]
    write_tables(Results(grown, []), grown[0].run_id, run)
    read = read_records(run)
    assert read == grown
    for record, old in zip(read, before, strict=True):
        in_loop, to_goal = record.compared(loop), record.compared(record.regime, goal)
        assert record.compared(record.regime) == old.compared(old.regime)
        if record.role is Role.CANDIDATE:
            assert in_loop is not None and (in_loop.verdict, in_loop.lo) == (Verdict.FASTER, 1.5)
            assert to_goal is not None and to_goal.ratio == 0.9
        else:
            assert in_loop is to_goal is None
    monkeypatch.setattr(Regime, "from_mode", lambda mode: loop)
    [decision] = decide_run(read)
    assert (decision.regime, decision.min_length) == (loop, 64)


def test_no_column_is_of_one_regime_or_reference():
    words = {word.value for word in (*Regime, *Reference)} | {"queued"}
    columns = [column.name for column in (*COMPARISONS, *RECORDS) if column.name != "device"]
    assert not words & {part for name in columns for part in name.split("_")}
    records = {column.name for column in RECORDS}
    assert not records & {"verdict", "speedup", "best_baseline", "median_ms"}


def test_what_was_timed_has_its_times_in_each_regime(tmp_path):
    """Baselines and controls have only times. A candidate also has a verdict."""
    made = Made(queue_ratio=lambda _: 1.4)
    timed = 0
    for record in read_records(make_run(tmp_path / "run", made)):
        for regime in (Regime.DEVICE, Regime.QUEUE) if record.status is Status.OK else ():
            found = record.comparison(regime)
            assert found.p20_ms and found.median_ms and found.p80_ms
            assert found.p20_ms <= found.median_ms <= found.p80_ms and found.n_samples
            assert (found.verdict is not None) == (record.role is Role.CANDIDATE)
            timed += 1
    assert timed


FAST = Made(flex_ms=lambda length: 0.01 * length / 64, lengths=(64, 128), shapes=((256, 4, 64),))


def in_the_first(plan):
    """Return the plan with flex_attention in the first case only, for the control that wraps it."""
    first, *others = plan.cases
    alone = tuple(n for n in first.implementations if n != "flex_attention")
    cases = [first.model_copy(update={"alongside": ("flex_attention",)})]
    cases += [p.model_copy(update={"implementations": alone}) for p in others]
    wraps = {Role.CONTROL: {"wraps": "flex_attention"}}
    return change_infos(plan, lambda info: wraps.get(info.role, {}), cases=cases)


def test_the_yardstick_is_the_same_in_all_cases(tmp_path):
    """A baseline that runs only for a control is compared with no candidate, even if fastest."""
    records = read_records(make_run(tmp_path / "run", FAST))
    assert {r.best_baseline for r in records if r.role is Role.CANDIDATE} == {"flex_attention"}
    run = make_run(tmp_path / "along", FAST, change=in_the_first)
    [part] = RunFolder(run).parts()
    results = assemble(part.plan.run_id, [part])
    candidates = [r for r in results.records if r.role is Role.CANDIDATE]
    assert {r.best_baseline for r in candidates} == {"sdpa_gqa"}
    assert {round(r.speedup or 0, 1) for r in candidates} == {0.5}
    [along] = [r for r in results.records if r.implementation == "flex_attention"]
    assert along.median_ms is not None and along.case_id == part.plan.cases[0].id
    assert all(c is not Catch.MISSED for c in (r.caught for r in results.records))


def test_what_is_timed_apart_is_what_a_candidate_is_held_to(tmp_path):
    plan = in_the_first(Plan.read(make_run(tmp_path / "run", FAST) / "plan.json"))
    plan = from_sources(plan)
    assert plan.list_clean(plan.cases[0], Role.BASELINE) == ["sdpa_gqa"]
