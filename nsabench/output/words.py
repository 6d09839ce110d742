"""The words of the terminal, the pages and `thresholds.yaml` that are of no closed vocabulary."""

from __future__ import annotations

from nsabench.model.vocabulary import NO_SPECIALISED

WORDS = {
    "op": "a contract: how inputs are made, the float64 oracle, and the work (bytes and FLOPs)",
    "case": "one op at one shape, dtype, direction, distribution, number of streams and mode",
    "cases": "how many cases a decision rests on",
    "implementation": "code that fulfils an op: a candidate, a baseline or a control",
    "oracle": "the op computed in float64 from the same quantised inputs: what is right",
    "floor": "the least time that the compulsory bytes and FLOPs of a case take at the ceilings",
    "of roofline": "how near a time is to the floor, as a share: at 100 % nothing could be faster",
    "ceilings": "what the device can do at most, measured in the run: bandwidth, rate of products",
    "harness": "all of a run that is not measuring: starting processes, drawing inputs, oracles",
    "pays": "from which length on, in every tested case, an op by its best valid implementation is "
    "faster than the best valid alternative: a length, at no length, not tested far enough, or not "
    "decided",
    "margin": "how many times as fast as the best valid baseline is worth it: 1.2, or `--margin`",
    "ratio": "the median time of the best valid baseline over that of the candidate: speed-up",
    "speed-up": "the median time of the best valid baseline over that of the candidate",
    "speedup_lo": "the lower end of the 95 % interval of the speed-up",
    "baseline ms": "the median time of the best valid baseline",
    "baseline queued": "the time of a queued call of the best valid baseline",
    "in the queue": "the verdict for calls from Python back to back, with its ratio",
    "outcome": "the verdict of each regime, or the status of what is not ok",
    "best baseline": "the fastest baseline of a case that is right and was measured beside it",
    "queued": "the time of a call among others, one behind the other, from Python",
    "host": "how long a call holds the CPU",
    "host µs": "how long a call holds the CPU",
    "ms": "the median time of a call on the device, L2 flushed before it",
    "failed": "implementations that are wrong, crash, or are otherwise not ok, without a reason of "
    "their own to decline",
    "complete": "every planned case was measured, and nothing failed",
    "decision": "from which length on a candidate is worth using, or why there is none",
    "step": "a direction: a forward with what its backward needs, and that backward",
    "threshold": "the smallest tested length from which on every tested case passes the margin",
    "runtime": "what a gate loads from `thresholds.yaml`",
    "sel_triton_min_L": "the selected length from which on a gate uses the kernel; null: never",
    "decisions": "one of each candidate, op and GPU",
    "decided_with": "the version of nsabench that decided",
    NO_SPECIALISED: "the ratio is over 3, and all baselines that were timed beside it are masks, "
    "gathers or FlexAttention: it says what those cost, and not what a kernel for it gains",
    "library": "what an implementation calls, with its version or commit and its licence",
    "combo": "the versions of torch, Triton and CUDA",
    "own": "of the user's own file",
    "sel_triton_min_L_by_regime": "the same in each regime that was measured, by GPU: a gate takes "
    "`queue` for calls from Python, `graph` or else `device` for what is captured or compiled",
    "gate": "whether `runtime.sel_triton_min_L` goes by this decision",
    "where": "the conditions that all its cases meet: a decision is for no others",
    "axis": "the size that lengths are of, such as L or S",
    "min_L": "the length from which on the candidate is worth using; null: none",
    "reasons": "why nothing is decided, or why it is no",
    "one_process": "cases that pass by little, and that no second process saw for this margin",
    "caveats": "checks behind a decision that were not shown to work; they stop nothing",
    "decided_by": "the case that keeps shorter lengths from being worth it",
    "why": "what is said of a case beside its status or verdict",
    "lengths": "how many cases of each length passed, and the weakest of them",
    "passed": "cases that are right and faster by the margin",
    "runs": "the runs that a decision rests on",
    "outcomes": "how often an implementation had which status",
    "best of": "in how many cases a baseline was the best valid one",
    "example": "one reason among those of an implementation",
    "alongside": "a baseline that runs for a control that wraps it; no candidate is held to it",
    "right": "its output is the op's in every case where it ran",
}
