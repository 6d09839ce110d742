"""Baselines timed where no candidate was imported: who, how, and what they are held to."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from nsabench import sources
from nsabench.assessment.results import ALL_OWN, assess
from nsabench.assessment.verdict import Judgement
from nsabench.execution import journal, schedule
from nsabench.execution.folder import RunFolder
from nsabench.execution.journal import Journal
from nsabench.execution.passes import Pass, first_look, isolated_baselines, second_look
from nsabench.execution.protocol import Measured, Spare
from nsabench.execution.supervisor import retry
from nsabench.execution.supervisor.executor import GroupLost
from nsabench.model.case import Case, FixedCount, RatioCI
from nsabench.model.journal import Contents, Entry
from nsabench.model.measurement import Bursts, Ceilings, Conditions, Outcome, Samples
from nsabench.model.plan import ImplementationInfo, Plan
from nsabench.model.source import Source
from nsabench.model.vocabulary import PassName, Role, Runs, Status, Verdict
from tests.runs import OP, Made, isolated, make_plan, make_run, spoilt, timed

SESSION = isolated_baselines.PASS.first_session
ONE = Made(lengths=(64,), shapes=((256, 4, 64),), ratio=lambda _: 1.5)
HOT = Conditions(clock_event_reasons=["hw_thermal_slowdown"])


def with_baselines(plan: Plan, *more: str) -> Plan:
    """The candidate from `mine.py`, with one baseline of its own; the others from `pkg`."""
    infos = [
        i.model_copy(update={"source": "mine.py" if i.role is Role.CANDIDATE else "pkg"})
        for i in plan.implementations
    ]
    infos += [
        ImplementationInfo(
            op=OP,
            name=name,
            role=Role.BASELINE,
            devices=(Runs.CUDA,),
            source="mine.py" if name == "own" else "pkg",
        )
        for name in more
    ]
    cases = [
        p.model_copy(update={"implementations": (*p.implementations, *more)}) for p in plan.cases
    ]
    sources = {"mine.py": "a", "pkg": "b"}
    return plan.model_copy(update={"implementations": infos, "cases": cases, "sources": sources})


def first_looked(folder: Path, *more: str) -> tuple[Plan, Contents]:
    """The plan of a run with more baselines, and its journal, which has no times of those yet."""
    make_run(folder, ONE)
    contents = journal.read(folder / "journal.jsonl")
    return with_baselines(Plan.read(folder / "plan.json"), *more), contents


class Alone:
    """Answers each baseline's time; whoever is in `deaths` ends the worker."""

    def __init__(
        self,
        times: Mapping[str, float],
        deaths: Mapping[str, Exception] | None = None,
        conditions: tuple[Conditions, ...] = (Conditions(),),
        rel_l2: float = 1e-5,
    ) -> None:
        self.times, self.deaths = times, deaths or {}
        self.conditions = list(conditions)
        self.rel_l2 = rel_l2
        self.asked: list[tuple[Case, list[str], int]] = []

    def measure(self, case: Case, implementations: list[str], session: int) -> Measured:
        self.asked.append((case, list(implementations), session))
        for name in implementations:
            if name in self.deaths:
                raise self.deaths[name]
        rng = np.random.default_rng(0)
        outcomes = [timed(n, self.times[n], ONE, rng) for n in implementations]
        update = {"session": session}
        return Measured(
            outcomes=[
                o.model_copy(
                    update=update
                    | ({"rel_l2": self.rel_l2} if o.implementation == "sloppy" else {})
                )
                for o in outcomes
            ],
            conditions=self.conditions.pop(0) if self.conditions[1:] else self.conditions[0],
            measuring_s=1.5,
        )

    def log(self) -> str:
        return ""

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def _no_cooling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry.time, "sleep", lambda seconds: None)


def measured(folder: Path, executor: Alone, *names: str) -> Entry:
    """The line that one case's measurement leaves in the journal."""
    plan = with_baselines(make_plan(ONE), *names)
    case_id = plan.cases[0].id
    with closing(Journal(folder / "journal.jsonl")) as records:
        wanted = {case_id: ["sdpa_gqa", *names]}
        for _ in range(2):  # the second time it is there already
            look(isolated_baselines.PASS, wanted, plan, executor, records, folder)
    [line] = journal.read(folder / "journal.jsonl").of(PassName.ISOLATED_BASELINES)
    return line


def look(
    pass_: Pass,
    cells: Mapping[str, list[str]],
    plan: Plan,
    executor: Alone,
    records: Journal,
    folder: Path,
) -> None:
    (folder / "logs").mkdir(exist_ok=True)
    notes = SimpleNamespace(note=lambda text: None)
    schedule.run(pass_, dict(cells), plan, executor, records, RunFolder(folder), notes)


def crash(suspect: str, phase: str = "parity") -> GroupLost:
    return GroupLost(suspect, Status.CRASHED, "killed by SIGSEGV", "log", phase=phase)


def test_baselines_of_clean_sources_are_wanted_where_a_verdict_is_faster() -> None:
    plan = with_baselines(make_plan(ONE), "other", "own")
    first, second = (planned.id for planned in plan.cases)
    judgements = {
        (first, "mine"): Judgement(Verdict.FASTER),
        (second, "mine"): Judgement(Verdict.SLOWER),
    }
    assert plan.clean_sources == {"pkg": "b"}
    assert isolated_baselines.cells(plan, lambda: judgements) == {first: ["sdpa_gqa", "other"]}


def test_who_may_be_left_out_of_which_pass(tmp_path: Path) -> None:
    """Nobody who shares a source with a candidate, or is there for a control: what it takes alone
    is not looked at. Where so many rounds or so much time is promised, nobody."""
    plan = with_baselines(make_plan(ONE), "other", "beside", "own")
    cases = [p.model_copy(update={"alongside": ("beside",)}) for p in plan.cases]
    timing = cases[1].case.timing.model_copy(
        update={"stopping": FixedCount(kind="fixed_count", rounds=30)}
    )
    promised = cases[1].case.model_copy(update={"timing": timing})
    cases[1] = cases[1].model_copy(update={"case": promised})
    plan = plan.model_copy(update={"cases": cases})
    first, second = (planned.id for planned in plan.cases)
    names = ("sdpa_gqa", "other")
    assert first_look.PASS.spares(plan) == {first: Spare(baselines=names, stay=2, least_ms=20.0)}
    alone = Spare(baselines=names, stay=1)
    assert isolated_baselines.PASS.spares(plan) == {first: alone, second: alone}
    assert second_look.PASS.spares(plan) == {}


def test_where_all_baselines_come_with_a_candidate_none_is_wanted() -> None:
    plan = make_plan(ONE)  # all from one source
    won = {(plan.cases[0].id, "mine"): Judgement(Verdict.FASTER)}
    assert isolated_baselines.cells(plan, lambda: won) == {}


OWN = "own takes 0."  # 1 ms in a process that never imported the one that is judged
DEAD = "own could not be timed apart from it: dead"


def test_a_winner_whose_baselines_all_come_with_it_says_so(tmp_path: Path) -> None:
    make_run(tmp_path, ONE)
    contents = journal.read(tmp_path / "journal.jsonl")
    plan = Plan.read(tmp_path / "plan.json")
    plan = plan.model_copy(update={"sources": {plan.implementations[0].source: "a"}})
    judgements = assess(plan, contents).judgements(contents).values()
    assert {j.verdict for j in judgements} == {Verdict.FASTER}
    assert {j.why for j in judgements} == {ALL_OWN}


def test_they_are_timed_once_together_and_briefly(tmp_path: Path) -> None:
    executor = Alone({"sdpa_gqa": 0.2, "other": 0.3})
    line = measured(tmp_path, executor, "other")
    [(case, names, session)] = executor.asked
    assert (names, session) == (["sdpa_gqa", "other"], SESSION)
    assert case.timing.stopping == RatioCI(min_rounds=10, max_rounds=10, budget_s=0.5)
    assert case.timing.warmup_s == 0.01
    assert case.id == line.case_id and case.seed == make_plan(ONE).cases[0].case.seed
    assert [o.status for o in line.outcomes] == [Status.OK, Status.OK]
    assert journal.read(tmp_path / "journal.jsonl").measuring_s == 1.5


def test_one_that_ends_the_worker_does_not_spoil_the_others(tmp_path: Path) -> None:
    deaths = {
        "fatal": crash("fatal"),
        "hangs": GroupLost("hangs", Status.TIMEOUT, "over its time", "", phase="timing"),
    }
    executor = Alone({"sdpa_gqa": 0.2}, deaths)
    line = measured(tmp_path, executor, "hangs", "fatal")
    assert [names for _, names, _ in executor.asked] == [
        ["sdpa_gqa", "hangs", "fatal"],
        ["sdpa_gqa", "fatal"],
        ["sdpa_gqa"],
    ]
    assert {o.implementation: (o.status, o.reason) for o in line.outcomes} == {
        "hangs": (Status.TIMEOUT, "over its time"),
        "fatal": (Status.CRASHED, "killed by SIGSEGV"),
        "sdpa_gqa": (Status.OK, ""),
    }
    assert line.reason == ""


def test_a_death_that_nobody_is_named_for_ends_it(tmp_path: Path) -> None:
    executor = Alone({}, {"sdpa_gqa": crash("")})
    line = measured(tmp_path, executor, "other")
    assert (line.outcomes, line.reason) == ([], "killed by SIGSEGV")
    assert len(executor.asked) == 1


def test_a_throttled_device_is_given_a_pause_and_its_state_is_kept(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    cooled = Alone({"sdpa_gqa": 0.2}, conditions=(HOT, Conditions()))
    line = measured(tmp_path / "a", cooled)
    assert len(cooled.asked) == 2
    assert line.conditions_that_count == [Conditions()]
    assert line.measuring_s == 3.0  # both times
    hot = Alone({"sdpa_gqa": 0.2}, conditions=(HOT,))
    assert measured(tmp_path / "b", hot).conditions_that_count == [HOT]
    assert len(hot.asked) == 2


def test_the_power_cap_does_not_pass_so_nothing_is_measured_twice_for_it(tmp_path: Path) -> None:
    capped = Conditions(
        clock_event_reasons=["sw_power_cap"], sm_clock_mhz_min=1600, sm_clock_mhz_max=1980
    )
    alone = Alone({"sdpa_gqa": 0.2}, conditions=(capped,))
    assert measured(tmp_path, alone).conditions_that_count == [capped]
    assert len(alone.asked) == 1


def test_a_second_look_keeps_the_state_of_the_device_as_well(tmp_path: Path) -> None:
    plan = make_plan(ONE)
    hot = Alone({"sdpa_gqa": 0.2, "mine": 0.19}, conditions=(HOT,))
    with closing(Journal(tmp_path / "journal.jsonl")) as records:
        doubtful = {plan.cases[0].id: ["sdpa_gqa", "mine"]}
        look(second_look.PASS, doubtful, plan, hot, records, tmp_path)
    contents = journal.read(tmp_path / "journal.jsonl")
    assert contents.measuring_s == 3.0  # twice, the device was hot
    [line] = contents.of(PassName.SECOND_LOOK)
    assert line.conditions_that_count == [HOT] and len(line.outcomes) == len(hot.asked) == 2


@pytest.mark.parametrize("rel_l2", [1e-5, 0.05])
def test_what_parity_rejects_is_no_best_baseline_apart(tmp_path: Path, rel_l2: float) -> None:
    """A cheap approximation passes the MAE gate of the worker and takes half the time."""
    plan, contents = first_looked(tmp_path, "sloppy")
    rng = np.random.default_rng(0)
    for entry in contents.of(PassName.FIRST_LOOK):
        outcome = timed("sloppy", 0.1, ONE, rng)
        entry.outcomes.append(outcome.model_copy(update={"rel_l2": 0.05}))
        mine = Alone({"sdpa_gqa": 0.2, "sloppy": 0.1}, rel_l2=rel_l2)
        case = next(p.case for p in plan.cases if p.id == entry.case_id)
        alone = mine.measure(case, ["sdpa_gqa", "sloppy"], SESSION)
        contents.add(
            isolated(
                case_id=entry.case_id,
                outcomes=alone.outcomes,
            )
        )
    judgements = assess(plan, contents).judgements(contents)
    expected = Verdict.FASTER if rel_l2 == 0.05 else Verdict.INCONCLUSIVE
    assert {j.verdict for j in judgements.values()} == {expected}


@pytest.mark.parametrize(
    ("few", "verdict", "why"),
    [
        ("other", Verdict.FASTER, ""),
        (
            "sdpa_gqa",
            Verdict.INCONCLUSIVE,
            "sdpa_gqa could not be timed apart from the candidates: it was called a few times only",
        ),
    ],
)
def test_who_was_left_out_as_hopeless_decides_nothing(
    tmp_path: Path, few: str, verdict: Verdict, why: str
) -> None:
    """Nor can it be the best where whoever made it look hopeless failed."""
    plan, contents = first_looked(tmp_path, "other")
    rng = np.random.default_rng(0)
    for entry in contents.of(PassName.FIRST_LOOK):
        entry.outcomes.append(timed("other", 2.0, ONE, rng))
        apart = []
        for name, median_ms in (("sdpa_gqa", 0.2), ("other", 2.0)):
            outcome = timed(name, median_ms, ONE, rng)
            seen = Samples(round=[0, 1], time_ms=outcome.samples.time_ms[:2])
            left = {"samples": seen, "bursts": Bursts(), "rel_l2": None, "mae": None}
            apart.append(outcome.model_copy(update=left) if name == few else outcome)
        contents.add(isolated(case_id=entry.case_id, outcomes=apart))
    judgements = assess(plan, contents).judgements(contents)
    assert {j.verdict for j in judgements.values()} == {verdict}
    assert {j.why for j in judgements.values()} == {why}


OWN = "own, a baseline from its own package, takes 0.19 ms and does not decide; sdpa_gqa takes 0.2 "
OTHERS = "own could not be timed apart from the candidates: it comes with another candidate"
FAILED = "sdpa_gqa could not be timed apart from the candidates: it is out of memory"


@pytest.mark.parametrize(
    ("source", "alone", "verdict", "why"),
    [
        ("mine.py", {"sdpa_gqa": 0.2}, Verdict.FASTER, OWN),
        # It was slowed, and what took less beside the candidate than it did says so.
        ("mine.py", {"sdpa_gqa": 0.1}, Verdict.INCONCLUSIVE, "sdpa_gqa takes 0.1 ms in a process"),
        ("mine.py", {"slow": 0.4}, Verdict.INCONCLUSIVE, FAILED),
        # Nobody else may be slowed by the one that is judged, and not be looked at.
        ("theirs", {"sdpa_gqa": 0.2}, Verdict.INCONCLUSIVE, OTHERS),
    ],
)
def test_a_best_baseline_that_no_process_has_without_candidates(
    tmp_path: Path, source: Source, alone: dict[str, float], verdict: Verdict, why: str
) -> None:
    """If it comes with the candidate, the best of the others decides, and the reason says so."""
    plan, contents = first_looked(tmp_path, "own", "slow")
    infos = [
        i.model_copy(update={"source": source}) if i.name == "own" else i
        for i in plan.implementations
    ]
    plan = plan.model_copy(update={"implementations": infos})
    rng = np.random.default_rng(0)
    for entry in contents.of(PassName.FIRST_LOOK):
        entry.outcomes += [timed("own", 0.19, ONE, rng), timed("slow", 0.4, ONE, rng)]
        apart = [timed(name, ms, ONE, rng) for name, ms in alone.items()]
        if "sdpa_gqa" not in alone:
            lost = Outcome(
                implementation="sdpa_gqa", status=Status.CRASHED, reason="it is out of memory"
            )
            apart.append(lost)
        contents.add(isolated(case_id=entry.case_id, outcomes=apart))
    for judgement in assess(plan, contents).judgements(contents).values():
        assert judgement.verdict is verdict
        assert judgement.best_baseline == ("sdpa_gqa" if source == "mine.py" else "own")
        assert judgement.why.startswith(why)


def test_a_wrong_baseline_stands_for_no_other(tmp_path: Path) -> None:
    plan, contents = first_looked(tmp_path, "own", "sloppy")
    rng = np.random.default_rng(0)
    for entry in contents.of(PassName.FIRST_LOOK):
        sloppy = spoilt(timed("sloppy", 0.12, ONE, rng), {"mae": 0.5})
        entry.outcomes += [timed("own", 0.19, ONE, rng), sloppy]
        apart = [timed("sdpa_gqa", 0.2, ONE, rng), sloppy]
        contents.add(isolated(case_id=entry.case_id, outcomes=apart))
    judgements = assess(plan, contents).judgements(contents).values()
    assert {(j.verdict, j.best_baseline) for j in judgements} == {(Verdict.FASTER, "sdpa_gqa")}


def test_a_process_that_was_lost_says_why_and_accuses_nobody(tmp_path: Path) -> None:
    plan, contents = first_looked(tmp_path, "other")
    skipped = Outcome(implementation="other", status=Status.SKIPPED, reason="it needs Triton")
    for entry in contents.of(PassName.FIRST_LOOK):
        lost = isolated(case_id=entry.case_id, outcomes=[skipped], reason="it was killed")
        contents.add(lost)
    judgements = assess(plan, contents).judgements(contents).values()
    assert {j.why for j in judgements} == {
        "the baselines could not be timed apart from the candidates: it was killed"
    }


@pytest.mark.parametrize(
    ("update", "median_ms", "reason"),
    [
        ({"mae": 0.5}, 0.2, "mean absolute error 0.5"),
        ({"escaped_ms": 0.05}, 0.2, "in 100% of the samples work went on"),
        ({}, 0.0005, "0.0005 ms is 2.10 times faster than possible"),
    ],
)
def test_a_best_baseline_that_a_check_rejects_apart_leaves_the_question_open(
    tmp_path: Path, update: dict[str, float], median_ms: float, reason: str
) -> None:
    made = replace(ONE, ceilings=Ceilings(copy_gb_s=4250))
    make_run(tmp_path, made)
    plan = with_baselines(Plan.read(tmp_path / "plan.json"))
    contents = journal.read(tmp_path / "journal.jsonl")
    for entry in contents.of(PassName.FIRST_LOOK):
        outcome = timed("sdpa_gqa", median_ms, made, np.random.default_rng(0))
        contents.add(isolated(case_id=entry.case_id, outcomes=[spoilt(outcome, update)]))
    for judgement in assess(plan, contents).judgements(contents).values():
        assert judgement.verdict is Verdict.INCONCLUSIVE
        assert f"sdpa_gqa could not be timed apart from the candidates: {reason}" in judgement.why


def test_the_file_of_an_op_does_not_let_in_that_of_the_candidate(tmp_path: Path) -> None:
    """Both are called mine.py; the op's is clean."""
    files = [tmp_path / "a" / "mine.py", tmp_path / "b" / "mine.py"]
    for file in files:
        file.parent.mkdir()
        file.write_text(f"# {file}\n")
    kernels, op = (Source.of_file(file, file.read_bytes()) for file in files)
    plan = with_baselines(make_plan(ONE))
    infos = [
        i.model_copy(update={"source": kernels}) if i.role is Role.CANDIDATE else i
        for i in plan.implementations
    ]
    digests = sources.digests(*files)
    names = {"kernels": str(files[0]), "ops": str(files[1]), "implementations": infos}
    names |= {"kernels_sha256": digests[kernels], "ops_sha256": digests[op]}
    plan = plan.model_copy(update=names | {"sources": digests})
    executor = isolated_baselines.PASS.start(plan, tmp_path)
    assert (executor.kernels, executor.ops_file) == (None, files[1])
    assert op in (executor.sources or {}) and kernels not in (executor.sources or {})
    without = [p.model_copy(update={"implementations": p.implementations[1:]}) for p in plan.cases]
    clean = plan.model_copy(update={"implementations": infos[1:], "cases": without})
    assert isolated_baselines.PASS.start(clean, tmp_path).kernels == files[0]
