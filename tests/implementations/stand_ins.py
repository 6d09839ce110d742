"""Inputs, and replacements of CUDA kernels, for tests of baselines and adapters."""

import torch
from torch.nn.attention import flex_attention as module

from nsabench import ops, registry
from nsabench.implementations import torch_attention
from nsabench.model.vocabulary import DType
from tests.implementations import libraries


def drawn(op, distribution, *, dtype=DType.FLOAT32, seed=3, **sizes):
    found = ops.get(op)
    shape = found.shape_model.model_validate(sizes)
    return found.draw(shape, dtype, distribution, seed=seed, device="cpu")


def registered(op, name):
    """Return the callable of an implementation."""
    return next(i.call for i in registry.load() if (i.op, i.name) == (op, name))


def assert_right(call, op, inputs, tolerance=1e-05):
    """Compare the output with the oracle, and return it."""
    out = call(*inputs.tensors.values(), **inputs.options)
    oracle = ops.get(op).oracle(inputs)
    torch.testing.assert_close(out.detach().double(), oracle, atol=tolerance, rtol=tolerance)
    return out


def aten_flash(q, k, v, cu, longest, sm_scale, window=0, *, causal=True):
    """Attend as FlashAttention does, with NaN in rows that it would not write."""
    assert not window
    dtype = q.dtype
    q, k, v = q.float(), k.float(), v.float()
    if cu is None:
        assert longest == (q.shape[1], k.shape[1])
        rows = zip(q, k, v, strict=True)
        out = [libraries.of_sequence(*row, sm_scale, causal) for row in rows]
        return torch.stack(out).to(dtype)
    assert all(x.dtype == torch.int32 and x.is_contiguous() for x in cu)
    out = [q.new_zeros(0, *q.shape[1:])]
    for i in range(len(cu[0]) - 1):
        some, keys = (slice(int(x[i]), int(x[i + 1])) for x in cu)
        assert some.stop - some.start <= longest[0] and keys.stop - keys.start <= longest[1]
        out.append(libraries.of_sequence(q[some], k[keys], v[keys], sm_scale, causal))
    unwritten = torch.full_like(q[int(cu[0][-1]) :], float("nan"))
    return torch.cat([*out, unwritten]).to(dtype)


def uncompiled_flex(monkeypatch):
    """Use FlexAttention uncompiled, which a CPU can run."""
    monkeypatch.setattr(torch_attention, "flex", lambda: (module.flex_attention, module))


def blind_the_host(monkeypatch):
    """Make it an error to read a value of a tensor on the host."""
    for method in ("item", "tolist", "__int__", "__bool__", "__index__"):
        monkeypatch.setattr(torch.Tensor, method, refuse_reading)


def refuse_reading(*_):
    raise AssertionError("the host read a value on the device")
