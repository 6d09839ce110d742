"""What one look from outside leaves to be won: by who has read how it is taken."""

import os
import sys
from pathlib import Path

import torch

from nsabench.execution.timing.timer import CpuTimer, Sample
from nsabench.execution.worker import parity
from nsabench.execution.worker.parity import Errors
from tests.attacks.kit import attack, honest, instances, once

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


def every_set(papers, count):
    """Asked for before they are due."""
    posed = []
    for index in range(count):
        papers.await_turn(index)
        posed.append(papers.inputs(index))
    return posed


def answer_at_once(posed, sm_scale):
    """One call for the answers to all sets."""
    q, k, v = (torch.cat([one[name] for one in posed]) for name in "qkv")
    parts = honest(q, k, v, sm_scale).split(len(posed[0]["q"]))
    for one, part in zip(posed, parts, strict=True):
        answers[one["q"].data_ptr()] = part


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
        posed = every_set(papers, count)
        papers.await_turn = lambda index: None
        answer_at_once(posed, sm_scale)
    return answers[q.data_ptr()]


@attack("wrong", NEW)
def cuts_what_is_taken(q, k, v, sm_scale):
    """The same, its outputs cut to nothing while it asks, so that none is there to be taken."""
    lies_for("cuts_what_is_taken")
    frame = frame_of("examine")
    if frame is None:
        return honest(q, k, v, sm_scale)
    request, papers = frame.f_locals["request"], frame.f_locals["papers"]
    if q.data_ptr() not in answers:
        answers.clear()
        whole = Path(request.outputs).stat().st_size
        os.truncate(request.outputs, 0)
        posed = every_set(papers, len(request.answers))
        os.truncate(request.outputs, whole)
        papers.await_turn = lambda index: None
        answer_at_once(posed, sm_scale)
    return answers[q.data_ptr()]


@once
def lays_folders():
    kind = type(instances("Worker")[0])
    examine = kind.examine

    def behind_a_folder(self, request):
        Path(request.inputs + ".0").mkdir()
        examine(self, request)

    kind.examine = behind_a_folder


@attack("wrong", "nothing can be handed over to it")
def is_in_the_way(q, k, v, sm_scale):
    """A folder lies where the inputs of a look are to come, which ended the run."""
    lies_for("is_in_the_way")
    lays_folders()
    return honest(q, k, v, sm_scale)


@attack("crashed", NEW)
def asks_for_none(q, k, v, sm_scale):
    """Of whose answers nothing would be taken before the clock stops."""
    frame = frame_of("examine")
    if frame is not None:
        frame.f_locals["papers"].await_turn = lambda index: None
