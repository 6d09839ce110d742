"""A first look at who is hopelessly behind, where only the best is asked for.

Of baselines that were found right elsewhere: to find that out again takes five times as many calls
as to see that one of them takes a hundred times as long as another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nsabench.execution.failure import Failure
from nsabench.execution.protocol import Step
from nsabench.execution.timing.timer import Timer
from nsabench.execution.worker.arm import CaseArm
from nsabench.model.measurement import Outcome, Samples
from nsabench.model.vocabulary import Status

CALLS = 2
# Times the best, in each of these calls. A GPU that wakes up meanwhile may take twice as long.
HOPELESS = 5.0


def hopeless(
    arms: Sequence[CaseArm], session: int, timer: Timer, report: Callable[[Step], None]
) -> dict[str, Outcome]:
    """Outcomes of those that need not be measured. Who fails is left to be measured, and told of
    then. Raises `DeviceLost`."""
    seen: dict[str, Samples] = {}
    for arm in arms:
        report(Step(phase="glance", implementation=arm.name))
        try:
            arm.one_call()()  # it compiles what it needs
            samples = [timer.sample(arm.name, arm.one_call(), arm.one_call) for _ in range(CALLS)]
        except Failure as failure:
            failure.alone()
        else:
            seen[arm.name] = Samples(
                round=list(range(CALLS)),
                time_ms=[sample.time_ms for sample, _ in samples],
                host_us=[sample.host_us for sample, _ in samples],
            )
    # Whichever takes longer, the device or its host: nobody's calls come faster in a queue.
    best_ms = min((max(*s.time_ms, max(s.host_us) / 1e3) for s in seen.values()), default=0.0)
    return {
        name: Outcome(
            implementation=name,
            status=Status.OK,
            session=session,
            samples=samples,
            notes=[f"seen in {CALLS} calls, which took over {HOPELESS:g} times as long as the best"],
        )
        for name, samples in seen.items()
        if min(samples.time_ms) > HOPELESS * best_ms
    }
