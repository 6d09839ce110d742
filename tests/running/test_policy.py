"""A log in, jobs out: what is measured next, and what deaths mean."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from nsabench.model.case import FixedCount, RatioCI
from nsabench.model.job import Death, EarlyExit, Job
from nsabench.model.log import Begun, Ended, Log, Observed
from nsabench.model.measurement import Conditions, Observation
from nsabench.model.record import Comparison
from nsabench.model.vocabulary import Mode, Purpose, Reference, Regime, Role, Runs, Status, Verdict
from nsabench.running.loop import run_job
from nsabench.running.policy import next_jobs
from nsabench.running.process import Printed
from nsabench.verdicts.attempts import states_of
from tests.runs import Made, change_infos, from_sources, info, log_of, retimed
from tests.runs import make_plan as made_plan

HOT = Conditions(clock_event_reasons=["hw_thermal_slowdown"])
CAPPED = Conditions(clock_event_reasons=["sw_power_cap"])
FINE = Conditions()
KILLED, INTERRUPTED = "killed", "interrupted"


def crash(suspect="", phase="parity"):
    return Death(status=Status.CRASHED, reason="SIGSEGV", suspect=suspect, phase=phase)


def hang(suspect, phase="parity"):
    return Death(status=Status.TIMEOUT, reason="too slow", suspect=suspect, phase=phase)


def fine(job):
    """Return log entries: all implementations of a job are right."""
    return [
        Observed(observation=Observation(implementation=n, status=Status.OK, attempt=job.attempt))
        for n in job.implementations
    ]


def nothing_judged(plan, log):
    return []


class Player:
    """Runs the jobs of a plan in a made-up world.

    world: returns what comes of a job: its device's state, a death, or an interrupt.
    """

    def __init__(self, plan, world=lambda job: FINE, *, sandbox="", judge=nothing_judged):
        self.plan, self.world, self.judge = plan, world, judge
        self.log = log_of(plan)
        described = self.log.sessions[0].described.model_copy(update={"sandbox": sandbox})
        self.log.sessions[0] = self.log.sessions[0].model_copy(update={"described": described})
        self.jobs: list[Job] = []
        while jobs := next_jobs(plan, self.log, judge):
            for job in jobs:
                answer = self.play(job)
                if answer != FINE:
                    break
            assert len(self.jobs) < 50, "the policy does not come to an end"

    def play(self, job):
        self.jobs.append(job)
        answer = self.world(job)
        self.log.add(Begun(job=job))
        if answer == INTERRUPTED:
            self.log.add(Ended(interrupted=True))
        elif isinstance(answer, Death):
            self.log.add(Ended(death=answer))
        elif isinstance(answer, Conditions):
            self.log.extend(*fine(job), Ended(conditions=answer))
        return answer

    @property
    def asked(self):
        return ["".join(job.implementations) for job in self.jobs]

    def state(self, purpose=Purpose.MAIN):
        [state] = states_of(self.plan, self.log, purpose).values()
        return state

    def observations(self):
        return {o.implementation: o for o in self.state().observations}


def always(answer):
    return lambda job: answer


def until(attempt, answer):
    return lambda job: answer if job.attempt <= attempt else FINE


def dies_with(*names, death=None):
    """Return a world where these kill a worker together. By default, the death names the last."""
    return lambda job: (death or crash(names[-1])) if {*names} <= {*job.implementations} else FINE


CANNOT_KILL = "files, signals"  # what a sandbox restricts
ALL_OK = "ok ok ok"
ALL_CRASHED = "crashed crashed crashed"
# By name: a world, the implementations of each job, and the statuses that follow.
CASES = {
    "all at once": (always(FINE), "abc", ALL_OK),
    "the suspect dies alone": (dies_with("b"), "abc b ac", "ok crashed ok"),
    "a suspect survives": (dies_with("a", death=crash("b")), "abc b a c bc", "crashed ok ok"),
    "a deadly combination": (dies_with("a", "b", death=crash()), "abc a b c", ALL_OK),
    "an unknown suspect": (always(crash("nobody")), "abc a b c", ALL_CRASHED),
    "one hangs": (dies_with("b", death=hang("b")), "abc b ac", "ok timeout ok"),
    # A thread of an earlier case may go on in the worker, and end it.
    "death before a request": (until(1, crash(phase="request")), "abc abc", ALL_OK),
    "death at the start": (until(1, crash(phase="start")), "abc abc", ALL_OK),
    "death before any call": (until(1, crash(phase="inputs")), "abc abc", ALL_OK),
    "inputs always fatal": (always(crash(phase="inputs")), "abc abc", ALL_CRASHED),
    "throttled once": (until(1, HOT), "abc abc", ALL_OK),
    "always throttled": (always(HOT), "abc abc", ALL_OK),
    "power cap": (always(CAPPED), "abc", ALL_OK),
    "interrupts": (until(3, INTERRUPTED), "abc abc abc abc", ALL_OK),
    "killed": (dies_with("a", death=KILLED), "abc a b c bc", "crashed ok ok"),
    # If the sandbox keeps kernels from killing, a person or a scheduler killed the worker.
    "one kill": (until(1, KILLED), "a a", "ok", CANNOT_KILL),
    "two kills": (until(2, KILLED), "a a a", "ok", CANNOT_KILL),
    "three kills": (until(3, KILLED), "a a a", "crashed", CANNOT_KILL),
    "kills after a blame": (
        lambda job: KILLED if job.attempt in (1, 2, 3, 4, 6) else FINE,
        "ab ab ab a a b b",
        "ok ok",
        CANNOT_KILL,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_becomes_of_a_case(make_plan, case):
    world, asked, statuses, *sandbox = CASES[case]
    jobs = asked.split()
    player = Player(make_plan([*jobs[0]]), world, sandbox="".join(sandbox))
    assert player.asked == jobs
    found = player.observations().values()
    assert " ".join(o.status for o in found) == statuses
    assert [job.attempt for job in player.jobs] == list(range(1, len(jobs) + 1))
    assert all(o.reason for o in found if o.status is not Status.OK)


def test_a_kill_counts_by_the_sandbox_of_its_own_session(make_plan):
    player = Player(make_plan(["a"]), sandbox=CANNOT_KILL)
    log = Log()
    log.add(player.log.sessions[0])
    log.add(Begun(job=player.jobs[0]))
    described = player.log.sessions[0].described.model_copy(update={"sandbox": "files"})
    log.add(player.log.sessions[0].model_copy(update={"described": described}))
    [job] = next_jobs(player.plan, log, nothing_judged)
    assert (job.attempt, job.implementations) == (2, ("a",))


def test_an_interrupt_while_its_words_are_kept_is_no_kill(make_plan):
    plan = make_plan(["a"])
    log = log_of(plan)
    [job] = next_jobs(plan, log, nothing_judged)

    class Ends:
        run = staticmethod(lambda job: crash("a"))
        worker = SimpleNamespace(log=Printed())

    def interrupted(job, observations, printed):
        raise KeyboardInterrupt

    executor = Ends()
    with pytest.raises(KeyboardInterrupt):
        run_job(job, executor, log.extend, interrupted)
    [made] = log.attempts
    assert made.ended is not None and made.ended.interrupted and made.ended.wall_s < 60
    assert next_jobs(plan, log, nothing_judged)[0].implementations == ("a",)


def test_tables_do_not_show_attempts_that_did_not_count(make_plan):
    undisturbed = Player(make_plan(["a", "b"]))
    resumed = Player(make_plan(["a", "b"]), until(2, INTERRUPTED))
    assert resumed.state().observations == undisturbed.state().observations
    alone = Player(make_plan(["a", "b"]), dies_with("a", "b"))
    assert alone.observations()["a"].attempt != alone.observations()["b"].attempt
    assert "measured alone" in alone.observations()["a"].notes[0]


def test_a_pause_comes_before_a_throttled_job_is_repeated(make_plan):
    player = Player(make_plan(["a"]), until(1, HOT))
    first, second = player.jobs
    assert first.pause_s == 0 and second.pause_s > 0
    assert list(player.state().conditions.values()) == [Conditions()]
    assert "throttled" in player.observations()["a"].notes[0]
    hot = Player(make_plan(["a"]), always(HOT))
    assert list(hot.state().conditions.values()) == [HOT]


@pytest.mark.parametrize("mode", [Mode.STREAM, Mode.GRAPH])
def test_what_cannot_run_here_is_skipped_with_the_reason(make_plan, mode):
    plan = make_plan(["a"])
    if mode is Mode.GRAPH:
        plan = plan.model_copy(update={"cases": [retimed(plan.cases[0], mode=mode)]})
    else:
        plan = change_infos(plan, lambda info: {"devices": (Runs.CUDA,)})
    player = Player(plan)
    assert player.asked == [] and player.observations()["a"].status is Status.SKIPPED
    assert "CUDA" in player.observations()["a"].reason.upper()


# --- Later passes

ONE = Made(lengths=(64,), shapes=((256, 4, 64),))


def with_baselines(plan, *more):
    """Add baselines: `own` from `mine.py`, like the candidate, and others from `pkg`."""
    plan = from_sources(plan)
    added = [
        info(name, Role.BASELINE, source="mine.py" if name == "own" else "pkg") for name in more
    ]
    cases = [
        p.model_copy(update={"implementations": (*p.implementations, *more)}) for p in plan.cases
    ]
    infos = [*plan.implementations, *added]
    return plan.model_copy(update={"implementations": infos, "cases": cases})


def verdict(verdict, against="sdpa_gqa", ratio=None, width=0.0, regime=Regime.DEVICE):
    """Return a comparison of the candidate. Its interval is the ratio plus and minus `width`."""
    ends = {"lo": ratio - width, "hi": ratio + width} if ratio else {}
    place = {"run_id": "r", "case_id": "", "implementation": "mine", "regime": regime}
    judged = {"verdict": verdict, "against": against, "ratio": ratio}
    return Comparison(**place, reference=Reference.BASELINE, **judged, **ends)


def judging(*verdicts):
    """Return a judge that gives the candidate these verdicts on the first case."""
    return lambda plan, log: [replace(v, case_id=plan.cases[0].id) for v in verdicts]


WON = verdict(Verdict.FASTER, ratio=2, width=0.1)
CLOSE = verdict(Verdict.FASTER, ratio=1.2, width=0.01)


def later(player, purpose):
    return [job for job in player.jobs if job.purpose is purpose]


def test_isolated_baselines_come_from_clean_sources_and_are_timed_briefly():
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
def test_where_an_op_pays_its_alternatives_are_isolated(lo, won, isolated):
    plan = from_sources(made_plan(replace(ONE, dense_ratio=lambda _: 2.0)))
    beside = replace(verdict(None), reference=Reference.ALTERNATIVE, lo=lo)
    judgements = [beside, *([WON] if won else [])]
    jobs = later(Player(plan, judge=judging(*judgements)), Purpose.ISOLATED)
    assert [job.implementations for job in jobs] == ([isolated] if isolated else [])


@pytest.mark.parametrize(
    ("judgements", "jobs"),
    [
        ([verdict(Verdict.SLOWER)], 0),
        ([verdict(Verdict.INCONCLUSIVE)], 0),
        ([verdict(None)], 0),
        ([verdict(Verdict.SAME), replace(WON, regime=Regime.QUEUE)], 1),
    ],
)
def test_a_winner_in_any_regime_has_its_baselines_isolated(judgements, jobs):
    player = Player(from_sources(made_plan(ONE)), judge=judging(*judgements))
    purposes = [job.purpose for job in player.jobs if job.purpose is not Purpose.MAIN]
    assert purposes == [Purpose.ISOLATED] * jobs


def test_where_all_baselines_come_with_a_candidate_nothing_is_isolated():
    plan = made_plan(ONE).model_copy(update={"sources": {"x": "a"}})
    player = Player(plan, judge=judging(WON))
    assert later(player, Purpose.ISOLATED) == []


def test_a_verdict_that_is_close_to_a_limit_is_confirmed_first():
    plan = with_baselines(made_plan(ONE), "flex")
    queue = verdict(Verdict.SLOWER, "flex", 0.99, 0.005, Regime.QUEUE)
    player = Player(plan, judge=judging(CLOSE, queue))
    purposes = list(dict.fromkeys(job.purpose for job in player.jobs))
    assert purposes[1:] == [Purpose.CONFIRMATION, Purpose.ISOLATED]
    [job] = later(player, Purpose.CONFIRMATION)
    assert job.implementations == ("flex", "sdpa_gqa", "mine")
    assert job.sources == ("mine.py", "pkg")


def test_an_isolated_baseline_that_ends_the_worker_is_left_out():
    plan = with_baselines(made_plan(ONE), "hangs", "fatal")

    def world(job):
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
def test_a_later_pass_that_dies_without_a_suspect_gives_up(purpose):
    world = lambda job: crash() if job.purpose is purpose else FINE  # noqa: E731
    player = Player(with_baselines(made_plan(ONE)), world, judge=judging(CLOSE))
    assert len(later(player, purpose)) == 1
    state = player.state(purpose)
    assert (state.observations, state.reason) == ([], "SIGSEGV")


def test_which_baselines_may_leave_early():
    """A baseline that shares a source with a candidate, or is there for a control, stays. A case
    with a fixed number of rounds keeps all."""
    plan = with_baselines(made_plan(ONE), "other", "reference", "own")
    cases = [p.model_copy(update={"alongside": ("reference",)}) for p in plan.cases]
    cases[1] = retimed(cases[1], stopping=FixedCount(kind="fixed_count", rounds=30))
    player = Player(plan.model_copy(update={"cases": cases}), judge=judging(WON))
    first, second = later(player, Purpose.MAIN)
    names = ("sdpa_gqa", "other")
    assert first.early_exit == EarlyExit(baselines=names, stay=2, least_ms=20.0)
    assert second.early_exit == EarlyExit()
    [isolated] = later(player, Purpose.ISOLATED)
    assert isolated.early_exit == EarlyExit(baselines=names, stay=1)


def test_the_canary_comes_last():
    plan = made_plan(Made(shard="1/2"))
    player = Player(plan)
    assert plan.canary is not None
    assert [job.purpose for job in player.jobs][-1] is Purpose.CANARY
    assert player.jobs[-1].case.id == plan.canary.id


@pytest.mark.parametrize("stop", range(6))
def test_a_run_that_stops_anywhere_goes_on_to_the_same_end(stop):
    """The jobs that are left are those that had not ended."""
    plan = with_baselines(made_plan(Made(lengths=(64, 128))))
    whole = Player(plan, judge=judging(CLOSE))
    log = log_of(plan)
    for job in whole.jobs[:stop]:
        log.extend(Begun(job=job), *fine(job), Ended())
    assert next_jobs(plan, log, judging(CLOSE))[0] == whole.jobs[stop]
