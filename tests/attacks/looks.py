"""What one look from outside leaves to be won: by who has read how it is taken."""

import sys

import torch

from nsabench.execution.timing.timer import CpuTimer, Sample
from nsabench.execution.worker import parity
from nsabench.execution.worker.parity import Errors
from tests.attacks.kit import attack, honest, once

NEW = "on inputs that only the referee knew, "
CLAIMED = 0.6  # of the time that its calls take
turns, answers = [], {}


def nothing_wrong(*given, **named):
    return Errors(0.0, 0.0, 0.0, 0.0, "output")


@once
def lies_for(name):
    """Its own judge is blind, and its clock is kind to one: what is left is the look from outside.
    By no more than a look forgives."""
    parity.check_values = nothing_wrong
    sample, burst = CpuTimer.sample, CpuTimer.burst

    def of_one(self, arm, call, retry=None):
        timed, result = sample(self, arm, call, retry)
        return (Sample(timed.time_ms * CLAIMED) if arm == name else timed), result

    def of_many(self, calls, kept, keep=lambda result: result):
        time_ms, result = burst(self, calls, kept, keep)
        own = name in str(calls[0])
        return (time_ms * CLAIMED if own else time_ms), result

    CpuTimer.sample, CpuTimer.burst = of_one, of_many


def frame_of(name):
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_name != name:
        frame = frame.f_back
    return frame


@attack("wrong", NEW)
def leaves_out_one_in_sixteen(q, k, v, sm_scale):
    """Of all outputs of a look a few are held to the oracle."""
    lies_for("leaves_out_one_in_sixteen")
    turns.append(None)
    if len(turns) % 16 == 0:
        return torch.empty_like(q)
    return honest(q, k, v, sm_scale)


@attack("wrong", NEW)
def all_at_once(q, k, v, sm_scale):
    """One call computes what all calls of a look return. They are asked for before they are due,
    or there is only one to be had."""
    lies_for("all_at_once")
    frame = frame_of("examine")
    if frame is None:
        return honest(q, k, v, sm_scale)
    if q.data_ptr() not in answers:
        answers.clear()
        papers, count = frame.f_locals["papers"], len(frame.f_locals["request"].answers)
        posed = []
        for index in range(count):
            papers.await_turn(index)
            posed.append(papers.inputs(index))
        papers.await_turn = lambda index: None
        q_, k_, v_ = (torch.cat([one[name] for one in posed]) for name in "qkv")
        out = honest(q_, k_, v_, sm_scale)
        for one, part in zip(posed, out.split(len(q)), strict=True):
            answers[one["q"].data_ptr()] = part
    return answers[q.data_ptr()]


@attack("crashed", NEW)
def asks_for_none(q, k, v, sm_scale):
    """Of whose answers nothing would be taken before the clock stops."""
    frame = frame_of("examine")
    if frame is not None:
        frame.f_locals["papers"].await_turn = lambda index: None
