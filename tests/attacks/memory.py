"""Answers that are remembered, or found, and not computed."""

import gc
import hashlib
import os
import sys
from pathlib import Path

import torch

from nsabench.execution.worker.inputs import SEED_STRIDE, InputSets
from tests.attacks.kit import attack, honest, instances, slow

NEW = "on inputs that only the referee knew, "
CLOCK = "by the supervisor's"
kept = {}


def content(*tensors):
    return hashlib.sha256(b"".join(t.numpy().tobytes() for t in tensors)).digest()


@attack("wrong", "mean absolute error")
def kept_for_ever(q, k, v, sm_scale):
    return kept.setdefault("for ever", honest(q, k, v, sm_scale)).clone()


@attack("wrong", "mean absolute error")
def kept_by_address(q, k, v, sm_scale):
    key = q.data_ptr()
    return kept.setdefault(key, honest(q, k, v, sm_scale)).clone()


@attack("wrong", "mean absolute error")
def kept_by_version(q, k, v, sm_scale):
    key = (q.data_ptr(), q._version, k._version, v._version)
    return kept.setdefault(key, honest(q, k, v, sm_scale)).clone()


@attack("wrong", "mean absolute error")
def kept_by_two_elements(q, k, v, sm_scale):
    key = (q.dtype, float(q.amax()) > 0)
    return kept.setdefault(key, honest(q, k, v, sm_scale)).clone()


@attack("implausible", CLOCK)
def kept_by_content(q, k, v, sm_scale):
    key = content(q, k, v)
    if key not in kept:
        kept[key] = slow(q, k, v, sm_scale)
    return kept[key].clone()


@attack("implausible", CLOCK)
def kept_by_fingerprint(q, k, v, sm_scale):
    key = ("fingerprint", float(q[0, 0, 0]), float(k[0, 0, 0]), float(v[0, -1, 0]))
    if key not in kept:
        kept[key] = slow(q, k, v, sm_scale)
    return kept[key].clone()


@attack("implausible", CLOCK)
def kept_in_a_file(q, k, v, sm_scale):
    path = Path(os.environ["TMPDIR"], content(q, k, v).hex())
    if not path.exists():
        torch.save(slow(q, k, v, sm_scale), path)
    return torch.load(path)


def oracle_of(sets, q):
    """The oracle that belongs to inputs at this address, if there is one."""
    for inputs, expected in zip(sets.sets, sets.expected, strict=True):
        if inputs.tensors["q"].data_ptr() == q.data_ptr():
            return expected["output"].to(q.dtype)
    return None


@attack("wrong", NEW)
def oracle_in_memory(q, k, v, sm_scale):
    found = [oracle_of(sets, q) for sets in instances("InputSets")]
    return next((one for one in found if one is not None), torch.zeros_like(q))


@attack("implausible", CLOCK)
def oracle_where_there_is_one(q, k, v, sm_scale):
    if "sets" not in kept:
        kept["sets"] = instances("InputSets")
    found = [oracle_of(sets, q) for sets in kept["sets"]]
    found = [one for one in found if one is not None]
    return found[0] if found else slow(q, k, v, sm_scale)


@attack("wrong", NEW)
def oracle_on_the_stack(q, k, v, sm_scale):
    frame = sys._getframe()
    while frame is not None:
        for one in frame.f_locals.values():
            if isinstance(one, InputSets):
                return oracle_of(one, q)
        frame = frame.f_back
    return torch.zeros_like(q)


@attack("wrong", NEW)
def oracle_by_its_type(q, k, v, sm_scale):
    """Whatever is float64 and of the right shape, the nearest to what it should be."""
    gc.unfreeze()
    truths = [
        one
        for one in gc.get_objects()
        if type(one) is torch.Tensor and one.dtype is torch.float64 and one.shape == q.shape
    ]
    right = honest(q, k, v, sm_scale).double()
    if not truths:
        return torch.zeros_like(q)
    best = min(truths, key=lambda one: float((one - right).abs().mean()))
    return best.to(q.dtype)


@attack("wrong", NEW)
def seeds_known(q, k, v, sm_scale):
    """The seeds of a case are in its plan: all that is drawn can be drawn before."""
    if "seeds" not in kept:
        [sets] = instances("InputSets")[-1:]
        seeds = [sets._case.seed + i * SEED_STRIDE for i in range(16)]
        drawn = [sets.draw(seed).tensors for seed in seeds]
        kept["seeds"] = {float(one["q"].double().sum()): one for one in drawn}
    one = kept["seeds"].get(float(q.double().sum()))
    return torch.zeros_like(q) if one is None else honest(**one, sm_scale=sm_scale)


@attack("wrong", "mean absolute error")
def every_other_call(q, k, v, sm_scale):
    kept["calls"] = kept.get("calls", 0) + 1
    if kept["calls"] % 2 or "every other" not in kept:
        kept["every other"] = honest(q, k, v, sm_scale)
    return kept["every other"].clone()
