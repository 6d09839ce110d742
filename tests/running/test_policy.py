"""A log in, jobs out: what is measured next, and what deaths mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from nsabench.model.case import FixedCount, RatioCI
from nsabench.model.job import Death, EarlyExit, Job
from nsabench.model.log import Begun, Ended, Log, Observed
from nsabench.model.measurement import Conditions, Observation
from nsabench.model.plan import ImplementationInfo, Plan
from nsabench.model.record import Comparison
from nsabench.model.vocabulary import Mode, Purpose, Reference, Regime, Role, Runs, Status, Verdict
from nsabench.running.loop import run_job
from nsabench.running.policy import next_jobs
from nsabench.running.process import Printed
from nsabench.verdicts.attempts import CaseState, states_of
from tests.running.conftest import MakePlan
from tests.running.conftest import make_plan as make_plan
from tests.runs import OP, Made, log_of
from tests.runs import make_plan as made_plan

HOT = Conditions(clock_event_reasons=["hw_thermal_slowdown"])
CAPPED = Conditions(clock_event_reasons=["sw_power_cap"])
KILLED, INTERRUPTED = "killed", "interrupted"

# The result of a job: the state of the device, a death, or the end of the measuring process.
Answer = Conditions | Death | str
World = Callable[[Job], Answer]


def crash(suspect: str = "", phase: str = "parity") -> Death:
    return Death(status=Status.CRASHED, reason="SIGSEGV", suspect=suspect, phase=phase)


def hang(suspect: str, phase: str = "parity") -> Death:
    return Death(status=Status.TIMEOUT, reason="too slow", suspect=suspect, phase=phase)


def nothing_judged(plan: Plan, log: Log) -> list[Comparison]:
    return []


class Player:
    """Runs the jobs of a plan in a world that is made up."""

    def __init__(
        self,
        plan: Plan,
        world: World = lambda job: Conditions(),
        *,
        sandbox: str = "",
        judge: Callable[[Plan, Log], list[Comparison]] = nothing_judged,
    ) -> None:
        self.plan, self.world, self.judge = plan, world, judge
        self.log = log_of(plan)
        described = self.log.sessions[0].described.model_copy(update={"sandbox": sandbox})
        self.log.sessions[0] = self.log.sessions[0].model_copy(update={"described": described})
        self.jobs: list[Job] = []
        while jobs := next_jobs(plan, self.log, judge):
            for job in jobs:
                answer = self.play(job)
                if answer != Conditions():
                    break
            assert len(self.jobs) < 50, "the policy does not come to an end"

    def play(self, job: Job) -> Answer:
        self.jobs.append(job)
        answer = self.world(job)
        self.log.add(Begun(job=job))
        if answer == INTERRUPTED:
            self.log.add(Ended(interrupted=True))
        elif isinstance(answer, Death):
            self.log.add(Ended(death=answer))
        elif isinstance(answer, Conditions):
            for name in job.implementations:
                observation = Observation(
                    implementation=name, status=Status.OK, attempt=job.attempt
                )
                self.log.add(Observed(observation=observation))
            self.log.add(Ended(conditions=answer))
        return answer

    @property
    def asked(self) -> list[str]:
        return [" ".join(job.implementations) for job in self.jobs]

    def state(self, purpose: Purpose = Purpose.MAIN) -> CaseState:
        [state] = states_of(self.plan, self.log, purpose).values()
        return state

    def observations(self) -> dict[str, Observation]:
        return {
            observation.implementation: observation for observation in self.state().observations
        }

    def statuses(self) -> str:
        return " ".join(
            f"{name}:{observation.status}" for name, observation in self.observations().items()
        )


def dies_with(*names: str, suspect: str | None = None) -> World:
    """Whenever these are measured together, their worker dies; by default it names the last."""

    def world(job: Job) -> Answer:
        if set(names) <= set(job.implementations):
            return crash(names[-1] if suspect is None else suspect)
        return Conditions()

    return world


@pytest.mark.parametrize(
    ("world", "asked", "statuses"),
    [
        pytest.param(lambda job: Conditions(), ["a b c"], "a:ok b:ok c:ok", id="all at once"),
        pytest.param(
            dies_with("b"),
            ["a b c", "b", "a c"],
            "a:ok b:crashed c:ok",
            id="the suspect dies alone and the others run together",
        ),
        pytest.param(
            dies_with("a", suspect="b"),
            ["a b c", "b", "a", "c", "b c"],
            "a:crashed b:ok c:ok",
            id="a suspect that survives alone is acquitted",
        ),
        pytest.param(
            dies_with("a", "b", suspect=""),
            ["a b c", "a", "b", "c"],
            "a:ok b:ok c:ok",
            id="a deadly combination keeps what each did alone",
        ),
        pytest.param(
            lambda job: crash("nobody"),
            ["a b c", "a", "b", "c"],
            "a:crashed b:crashed c:crashed",
            id="an unknown suspect ends",
        ),
        pytest.param(
            lambda job: crash("", phase="inputs") if job.attempt == 1 else Conditions(),
            ["a b c", "a b c"],
            "a:ok b:ok c:ok",
            id="a death before any call is tried again",
        ),
        pytest.param(
            lambda job: crash("", phase="inputs"),
            ["a b c", "a b c"],
            "a:crashed b:crashed c:crashed",
            id="inputs that always end the worker",
        ),
        pytest.param(
            lambda job: HOT if job.attempt == 1 else Conditions(),
            ["a b c", "a b c"],
            "a:ok b:ok c:ok",
            id="a throttled device is measured again",
        ),
        pytest.param(lambda job: HOT, ["a b c", "a b c"], "a:ok b:ok c:ok", id="always throttled"),
        pytest.param(
            lambda job: CAPPED, ["a b c"], "a:ok b:ok c:ok", id="the power cap does not pass"
        ),
        pytest.param(
            lambda job: INTERRUPTED if job.attempt < 4 else Conditions(),
            ["a b c"] * 4,
            "a:ok b:ok c:ok",
            id="an interrupt says nothing of what was measured",
        ),
        pytest.param(
            lambda job: KILLED if "a" in job.implementations else Conditions(),
            ["a b c", "a", "b", "c", "b c"],
            "a:crashed b:ok c:ok",
            id="without a sandbox a killed process accuses at once",
        ),
    ],
)
def test_what_becomes_of_a_case(
    make_plan: MakePlan, world: World, asked: list[str], statuses: str
) -> None:
    player = Player(make_plan(["a", "b", "c"]), world)
    assert player.asked == asked
    assert player.statuses() == statuses
    assert [job.attempt for job in player.jobs] == list(range(1, len(asked) + 1))


@pytest.mark.parametrize(("kills", "guilty"), [(1, False), (2, False), (3, True)])
def test_a_killed_process_is_forgiven_where_kernels_cannot_kill(
    make_plan: MakePlan, kills: int, guilty: bool
) -> None:
    """A person or a scheduler killed it."""
    world: World = lambda job: KILLED if job.attempt <= kills else Conditions()  # noqa: E731
    player = Player(make_plan(["a"]), world, sandbox="files, signals")
    assert player.asked == ["a"] * min(kills + 1, 3)
    assert player.statuses() == ("a:crashed" if guilty else "a:ok")
    assert "killed" in player.observations()["a"].reason or not guilty


def test_after_a_blame_kills_are_forgiven_anew(make_plan: MakePlan) -> None:
    """Three kills together, then one more of each alone, which the scheduler is to blame for."""
    kills = (1, 2, 3, 4, 6)
    world: World = lambda job: KILLED if job.attempt in kills else Conditions()  # noqa: E731
    player = Player(make_plan(["a", "b"]), world, sandbox="files, signals")
    assert player.asked == ["a b"] * 3 + ["a", "a", "b", "b"]
    assert player.statuses() == "a:ok b:ok"


def test_a_kill_counts_by_the_sandbox_of_its_own_session(make_plan: MakePlan) -> None:
    player = Player(make_plan(["a"]), lambda job: Conditions(), sandbox="files, signals")
    log = Log()
    log.add(player.log.sessions[0])
    log.add(Begun(job=player.jobs[0]))
    described = player.log.sessions[0].described.model_copy(update={"sandbox": "files"})
    log.add(player.log.sessions[0].model_copy(update={"described": described}))
    [job] = next_jobs(player.plan, log, nothing_judged)
    assert (job.attempt, job.implementations) == (2, ("a",))


@pytest.mark.parametrize("phase", ["request", "start", "inputs"])
def test_who_dies_between_two_cases_is_of_the_earlier_one(make_plan: MakePlan, phase: str) -> None:
    """A thread of it goes on in the warm worker."""
    world: World = lambda job: crash("", phase) if job.attempt == 1 else Conditions()  # noqa: E731
    player = Player(make_plan(["a", "b"]), world)
    assert player.asked == ["a b", "a b"] and player.statuses() == "a:ok b:ok"


def test_an_interrupt_while_its_words_are_kept_is_no_kill(make_plan: MakePlan) -> None:
    plan = make_plan(["a"])
    log = log_of(plan)
    [job] = next_jobs(plan, log, nothing_judged)

    class Ends:
        run = staticmethod(lambda job: crash("a"))
        worker = SimpleNamespace(log=Printed())

    def interrupted(job: Job, observations: object, printed: str) -> None:
        raise KeyboardInterrupt

    executor: Any = Ends()
    with pytest.raises(KeyboardInterrupt):
        run_job(job, executor, log.extend, interrupted)
    [made] = log.attempts
    assert made.ended is not None and made.ended.interrupted and made.ended.wall_s < 60
    assert next_jobs(plan, log, nothing_judged)[0].implementations == ("a",)


def test_an_implementation_that_hung_is_measured_alone(make_plan: MakePlan) -> None:
    world: World = lambda job: hang("b") if "b" in job.implementations else Conditions()  # noqa: E731
    player = Player(make_plan(["a", "b"]), world)
    assert player.asked == ["a b", "b", "a"]
    assert player.statuses() == "a:ok b:timeout"


def test_tables_do_not_show_attempts_that_did_not_count(make_plan: MakePlan) -> None:
    undisturbed = Player(make_plan(["a", "b"]))
    resumed = Player(
        make_plan(["a", "b"]), lambda job: INTERRUPTED if job.attempt < 3 else Conditions()
    )
    assert resumed.state().observations == undisturbed.state().observations
    alone = Player(make_plan(["a", "b"]), dies_with("a", "b"))
    assert alone.observations()["a"].attempt != alone.observations()["b"].attempt
    assert "measured alone" in alone.observations()["a"].notes[0]


def test_a_pause_comes_before_a_throttled_job_is_repeated(make_plan: MakePlan) -> None:
    player = Player(make_plan(["a"]), lambda job: HOT if job.attempt == 1 else Conditions())
    first, second = player.jobs
    assert first.pause_s == 0 and second.pause_s > 0
    assert list(player.state().conditions.values()) == [Conditions()]
    assert "throttled" in player.observations()["a"].notes[0]
    hot = Player(make_plan(["a"]), lambda job: HOT)
    assert list(hot.state().conditions.values()) == [HOT]


@pytest.mark.parametrize("mode", [Mode.STREAM, Mode.GRAPH])
def test_what_cannot_run_here_is_skipped_with_the_reason(make_plan: MakePlan, mode: Mode) -> None:
    plan = make_plan(["a"])
    if mode is Mode.GRAPH:
        [planned] = plan.cases
        timing = planned.case.timing.model_copy(update={"mode": mode})
        case = planned.case.model_copy(update={"timing": timing})
        plan = plan.model_copy(update={"cases": [planned.model_copy(update={"case": case})]})
    else:
        only_cuda = plan.implementations[0].model_copy(update={"devices": (Runs.CUDA,)})
        plan = plan.model_copy(update={"implementations": [only_cuda]})
    player = Player(plan)
    assert player.asked == [] and player.statuses() == "a:skipped"
    assert "CUDA" in player.observations()["a"].reason.upper()


# --- Later passes

ONE = Made(lengths=(64,), shapes=((256, 4, 64),))


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


def verdict(
    verdict: Verdict | None,
    against: str = "sdpa_gqa",
    ratio: float | None = None,
    width: float = 0.0,
    regime: Regime = Regime.DEVICE,
) -> Comparison:
    """A comparison of the candidate; ratio and half the width of its interval."""
    known = {"run_id": "r", "case_id": "", "implementation": "mine", "regime": regime}
    ends = {"lo": ratio - width, "hi": ratio + width} if ratio else {}
    return Comparison(
        **known,
        reference=Reference.BASELINE,
        verdict=verdict,
        against=against,
        ratio=ratio,
        **ends,
    )


def judging(*verdicts: Comparison) -> Callable[[Plan, Log], list[Comparison]]:
    """Judge the candidate on the first case like this."""
    return lambda plan, log: [replace(v, case_id=plan.cases[0].id) for v in verdicts]


WON = verdict(Verdict.FASTER, ratio=2, width=0.1)
CLOSE = verdict(Verdict.FASTER, ratio=1.2, width=0.01)


def later(player: Player, purpose: Purpose) -> list[Job]:
    return [job for job in player.jobs if job.purpose is purpose]


def test_isolated_baselines_come_from_clean_sources_and_are_timed_briefly() -> None:
    plan = with_baselines(made_plan(ONE), "other", "own")
    player = Player(plan, judge=judging(WON))
    [job] = later(player, Purpose.ISOLATED)
    assert (job.implementations, job.sources) == (("sdpa_gqa", "other"), ("pkg",))
    assert job.case.timing.stopping == RatioCI(min_rounds=10, max_rounds=10, budget_s=0.5)
    assert (job.case.timing.warmup_s, job.case.id) == (0.01, plan.cases[0].id)
    assert later(player, Purpose.CONFIRMATION) == []


@pytest.mark.parametrize(
    ("lo", "won", "isolated"),
    [
        (1.1, False, ("dense",)),
        (1.1, True, ("sdpa_gqa", "dense")),
        (0.9, False, ()),
        (None, True, ("sdpa_gqa",)),
    ],
)
def test_where_an_op_pays_its_alternatives_are_isolated(
    lo: float | None, won: bool, isolated: tuple[str, ...]
) -> None:
    plan = with_baselines(made_plan(ONE), "dense")
    infos = [
        i.model_copy(update={"role": Role.ALTERNATIVE}) if i.name == "dense" else i
        for i in plan.implementations
    ]
    plan = plan.model_copy(update={"implementations": infos})
    beside = replace(verdict(None), reference=Reference.ALTERNATIVE, lo=lo)
    judgements = [beside, *([WON] if won else [])]
    jobs = later(Player(plan, judge=judging(*judgements)), Purpose.ISOLATED)
    assert [job.implementations for job in jobs] == ([isolated] if isolated else [])


@pytest.mark.parametrize(
    "judgement", [verdict(Verdict.SLOWER), verdict(Verdict.INCONCLUSIVE), verdict(None)]
)
def test_without_a_winner_nothing_is_isolated(judgement: Comparison) -> None:
    player = Player(with_baselines(made_plan(ONE)), judge=judging(judgement))
    assert {job.purpose for job in player.jobs} == {Purpose.MAIN}


def test_a_winner_in_any_regime_counts() -> None:
    judge = judging(verdict(Verdict.SAME), replace(WON, regime=Regime.QUEUE))
    player = Player(with_baselines(made_plan(ONE)), judge=judge)
    assert len(later(player, Purpose.ISOLATED)) == 1


def test_where_all_baselines_come_with_a_candidate_nothing_is_isolated() -> None:
    plan = made_plan(ONE).model_copy(update={"sources": {"x": "a"}})
    player = Player(plan, judge=judging(WON))
    assert later(player, Purpose.ISOLATED) == []


def test_a_verdict_that_is_close_to_a_limit_is_confirmed_first() -> None:
    plan = with_baselines(made_plan(ONE), "flex")
    queue = verdict(Verdict.SLOWER, "flex", 0.99, 0.005, Regime.QUEUE)
    player = Player(plan, judge=judging(CLOSE, queue))
    purposes = list(dict.fromkeys(job.purpose for job in player.jobs))
    assert purposes[1:] == [Purpose.CONFIRMATION, Purpose.ISOLATED]
    [job] = later(player, Purpose.CONFIRMATION)
    assert job.implementations == ("flex", "sdpa_gqa", "mine")
    assert job.sources == ("mine.py", "pkg")


def test_an_isolated_baseline_that_ends_the_worker_is_left_out() -> None:
    plan = with_baselines(made_plan(ONE), "hangs", "fatal")

    def world(job: Job) -> Answer:
        if job.purpose is Purpose.ISOLATED:
            for name, death in (("hangs", hang("hangs")), ("fatal", crash("fatal"))):
                if name in job.implementations:
                    return death
        return Conditions()

    player = Player(plan, world, judge=judging(WON))
    state = player.state(Purpose.ISOLATED)
    assert [o.status for o in state.observations] == [Status.OK, Status.TIMEOUT, Status.CRASHED]
    assert state.reason == ""


@pytest.mark.parametrize("purpose", [Purpose.CONFIRMATION, Purpose.ISOLATED])
def test_a_later_pass_that_dies_without_a_suspect_gives_up(purpose: Purpose) -> None:
    world: World = lambda job: crash() if job.purpose is purpose else Conditions()  # noqa: E731
    player = Player(with_baselines(made_plan(ONE)), world, judge=judging(CLOSE))
    assert len(later(player, purpose)) == 1
    state = player.state(purpose)
    assert (state.observations, state.reason) == ([], "SIGSEGV")


def test_which_baselines_may_leave_early() -> None:
    """A baseline that shares a source with a candidate, or is there for a control, stays. A case
    that promises so many rounds keeps all."""
    plan = with_baselines(made_plan(ONE), "other", "reference", "own")
    cases = [p.model_copy(update={"alongside": ("reference",)}) for p in plan.cases]
    timing = cases[1].case.timing.model_copy(
        update={"stopping": FixedCount(kind="fixed_count", rounds=30)}
    )
    promised = cases[1].case.model_copy(update={"timing": timing})
    cases[1] = cases[1].model_copy(update={"case": promised})
    player = Player(plan.model_copy(update={"cases": cases}), judge=judging(WON))
    first, second = later(player, Purpose.MAIN)
    names = ("sdpa_gqa", "other")
    assert first.early_exit == EarlyExit(baselines=names, stay=2, least_ms=20.0)
    assert second.early_exit == EarlyExit()
    [isolated] = later(player, Purpose.ISOLATED)
    assert isolated.early_exit == EarlyExit(baselines=names, stay=1)


def test_the_canary_comes_last() -> None:
    plan = made_plan(Made(shard="1/2"))
    player = Player(plan)
    assert plan.canary is not None
    assert [job.purpose for job in player.jobs][-1] is Purpose.CANARY
    assert player.jobs[-1].case.id == plan.canary.id


@pytest.mark.parametrize("stop", range(6))
def test_a_run_that_stops_anywhere_goes_on_to_the_same_end(stop: int) -> None:
    """The jobs that are left are those that had not ended."""
    plan = with_baselines(made_plan(Made(lengths=(64, 128))))
    whole = Player(plan, judge=judging(CLOSE))
    log = log_of(plan)
    for job in whole.jobs[:stop]:
        log.add(Begun(job=job))
        for name in job.implementations:
            observation = Observation(implementation=name, status=Status.OK, attempt=job.attempt)
            log.add(Observed(observation=observation))
        log.add(Ended())
    assert next_jobs(plan, log, judging(CLOSE))[0] == whole.jobs[stop]
