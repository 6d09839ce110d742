"""Right kernels pass in every form of code and with every layout of the output."""

import functools
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

from nsabench.checks import DeviceLimits, Effect, run_checks
from nsabench.model.vocabulary import DType, Status
from nsabench.registry import Unsupported
from nsabench.registry.validation import validate
from tests.checking import a_case, measured, registered, rounds, rows_of

SHAPE = {"N": 8, "H": 4, "D": 32, "Dv": 32, "L": 96}
TUNING_S = 0.3  # longer than all other calls together
FORMS = {}
Form = Callable[..., Any]


def form(call):
    FORMS[call.__name__] = call
    return call


@form
def plain(q, k, v, *, sm_scale):
    weights = torch.softmax(q.float() @ k.float().mT * sm_scale, -1)
    return (weights @ v.float()).to(v.dtype)


@form
def strided_output(*tensors, sm_scale):
    return plain(*tensors, sm_scale=sm_scale).mT.contiguous().mT


@form
def padded_output(*tensors, sm_scale):
    out = plain(*tensors, sm_scale=sm_scale)
    return torch.cat([out, out + torch.nan], -1)[..., : out.shape[-1]]


@form
def offset_output(*tensors, sm_scale):
    out = plain(*tensors, sm_scale=sm_scale).flatten()
    return torch.cat([out[:1], out])[1:].view(*tensors[0].shape[:2], -1)


@form
def expanded_output(q, k, v, *, sm_scale):
    """With one key, return one row for all heads, which is right."""
    if k.shape[1] > 1:
        return plain(q, k, v, sm_scale=sm_scale)
    return plain(q[:, :1], k, v, sm_scale=sm_scale).expand(-1, q.shape[1], -1)


@form
def parameter_defaults(q, k, v, *, sm_scale=1.0, block=64):
    return plain(q, k, v, sm_scale=sm_scale)


@form
def any_arguments(*tensors, **options):
    return plain(*tensors, **options)


class Attention(nn.Module):
    def forward(self, q, k, v, sm_scale):
        return plain(q, k, v, sm_scale=sm_scale)


class Callables:
    def __call__(self, q, k, v, *, sm_scale):
        return plain(q, k, v, sm_scale=sm_scale)

    def method(self, q, k, v, *, sm_scale):
        return self(q, k, v, sm_scale=sm_scale)

    @classmethod
    def of_class(cls, q, k, v, *, sm_scale):
        return cls()(q, k, v, sm_scale=sm_scale)


@functools.wraps(plain)
def wrapped(*tensors, **options):
    return plain(*tensors, **options)


def attend_in_blocks(block, q, k, v, *, sm_scale):
    rows = zip(q.split(block), k.split(block), v.split(block), strict=True)
    return torch.cat([plain(*row, sm_scale=sm_scale) for row in rows])


FORMS |= {
    "module": Attention(),
    "callable_object": Callables(),
    "bound_method": Callables().method,
    "class_method": Callables.of_class,
    "partial": functools.partial(attend_in_blocks, 3),
    "anonymous": lambda q, k, v, *, sm_scale: plain(q, k, v, sm_scale=sm_scale),
    "wrapped": wrapped,
}
# A fixture compiles them, since importing the compiler takes seconds.
COMPILED = {"compiled": plain, "compiled_module": Attention()}


@form
def threads(q, k, v, *, sm_scale):
    with ThreadPoolExecutor(2) as pool:
        rows = pool.map(lambda row: plain(*row, sm_scale=sm_scale), zip(q, k, v, strict=True))
    return torch.stack(list(rows))


@form
def long_lived_thread(*tensors, sm_scale):
    if not any(thread.name == "long_lived" for thread in threading.enumerate()):
        idle = threading.Event().wait
        threading.Thread(target=idle, daemon=True, name="long_lived").start()
    return plain(*tensors, sm_scale=sm_scale)


_tuned = {}


@form
def autotuned(q, k, v, *, sm_scale):
    if q.shape not in _tuned:
        time.sleep(TUNING_S)
        _tuned[q.shape] = max(1, len(q) // 2)
    return attend_in_blocks(_tuned[q.shape], q, k, v, sm_scale=sm_scale)


_workspace = torch.empty(0)


@form
def growing_workspace(q, k, v, *, sm_scale):
    global _workspace
    size = q.shape[0] * q.shape[1] * k.shape[1]
    if _workspace.numel() < size:
        _workspace = torch.empty(size)
    scores = q.float() @ k.float().mT * sm_scale
    _workspace[:size] = scores.detach().flatten()
    weights = torch.softmax(scores, -1)
    return (weights @ v.float()).to(v.dtype)


@functools.cache
def ones(size):
    return torch.ones(size)


@form
def cached_constant(q, k, v, *, sm_scale):
    return plain(q * ones(q.shape[-1]).to(q.dtype), k, v, sm_scale=sm_scale)


@form
def preallocated(*tensors, sm_scale):
    answer = plain(*tensors, sm_scale=sm_scale)
    return torch.empty_like(answer).copy_(answer)


@form
def double_precision(q, k, v, *, sm_scale):
    weights = torch.softmax(q.double() @ k.double().mT * sm_scale, -1)
    return (weights @ v.double()).to(v.dtype)


@form
def fallback(*tensors, sm_scale):
    try:
        raise Unsupported("the fast way takes no such sizes")
    except Unsupported:
        return plain(*tensors, sm_scale=sm_scale)


@form
def warning(*tensors, sm_scale):
    warnings.warn("the first call is slow", stacklevel=2)
    return plain(*tensors, sm_scale=sm_scale)


class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *given):
        return plain(*given[:3], sm_scale=given[3])


@form
def autograd_function(*tensors, sm_scale):
    return Function.apply(*tensors, sm_scale)


@pytest.fixture(scope="module")
def records():
    """Return the record of each form, and the findings against it except notes."""
    results = {}
    options = {"backend": "eager", "dynamic": False}
    forms = FORMS | {name: torch.compile(call, **options) for name, call in COMPILED.items()}
    for length in (SHAPE["L"], 1):
        names = [name for name in forms if (name == "expanded_output") == (length == 1)]
        items = [registered("selection_rows", name, forms[name]) for name in names]
        validate(items)
        shape = SHAPE | {"L": length}
        case = a_case("selection_rows", shape, dtype=DType.BFLOAT16, timing=rounds(5))
        with warnings.catch_warnings(action="ignore"):
            rows = rows_of(case, items, measured(case, items, probes=True))
        findings, _ = run_checks(rows, DeviceLimits())
        for row in rows:
            own = [f for f in findings if f.implementation == row.implementation]
            results[row.implementation] = row, [f for f in own if f.effect is not Effect.NOTE]
    return results


@pytest.mark.parametrize("name", [*FORMS, *COMPILED])
def test_a_right_kernel_passes_in_every_form(records, name):
    record, findings = records[name]
    assert (record.status, record.reason, findings) == (Status.OK, "", [])
