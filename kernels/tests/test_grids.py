"""Grids: CUDA takes 65,535 programs at most along the second and along the third axis."""

import cases
import nsa_kernels
import pytest
import torch
from nsa_kernels.launch import sizes
from triton.runtime.jit import KernelInterface

LIMIT = 65_535


def sequences(b, t, hq, h, d=16):
    """Return q, k, v and gates of uninitialised memory, which is never read."""
    of = torch.empty
    return of(b, t, hq, d), of(b, t, h, d), of(b, t, h, d), of(b, t, hq, 3)


def spans(b, g):
    ranges = torch.empty(b, 1, g, 1, 2, dtype=torch.int32)
    return torch.empty(b, 1, g, 1, 16), torch.empty(b, g, 1, 16), torch.empty(b, g, 1, 16), ranges


WINDOW = sequences(LIMIT + 2, 1, 1, 1)[:3]
CALLS = {
    "window": (lambda *x: nsa_kernels.sliding_window(*x, window=4)[0], WINDOW, 3),
    "compressed": (
        lambda *x: nsa_kernels.compressed_attention(*x)[0],
        (torch.empty(LIMIT + 2, 32, 1, 16), *WINDOW[1:]),
        3,
    ),
    "scores": (
        nsa_kernels.compressed_attention_with_scores,
        (torch.empty(9000, 32, 8, 32), *(torch.empty(9000, 1, 8, 32) for _ in "kv")),
        0,
    ),
    "whole": (
        lambda *x: nsa_kernels.nsa_attention(*x, block_size=16, block=16),
        sequences(9000, 16, 8, 8, 32),
        4,
    ),
    "ranges": (lambda *x: nsa_kernels.selection_ranges(*x)[0], spans(9000, 8), 3),
    "decode scores": (
        lambda *x: nsa_kernels.decode_scores(*x, 1),
        (torch.empty(9000, 8, 32), torch.empty(9000, 8, 1, 32), torch.empty(9000, 8)),
        0,
    ),
    "step": (
        nsa_kernels.decode_step,
        (
            torch.empty(9000, 8, 32),
            *(torch.empty(9000, 8, n, 32) for n in (64, 64, 3, 3)),
            torch.empty(9000, 8, 3),
        ),
        0,
    ),
}


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels here are for the CPU")
@pytest.mark.parametrize("name", CALLS)
def test_no_grid_has_too_many_programs(name, monkeypatch):
    grids = []

    def note(kernel, grid):
        grids.append(grid)
        return lambda *_, **__: None

    monkeypatch.setattr(KernelInterface, "__getitem__", note)
    call, tensors, leaves = CALLS[name]
    given = [x.detach().requires_grad_(i < leaves) for i, x in enumerate(tensors)]
    out = call(*given)
    if leaves:
        out.backward(out.detach())
    assert grids and all(max((*grid, 1, 1)[1:3]) <= LIMIT for grid in grids)


@pytest.mark.parametrize(
    "name", ["sliding_window", "compressed_attention", "selection_ranges", "nsa_attention"]
)
def test_several_launches_compute_what_one_does(name, monkeypatch):
    """Grids are limited to 4 programs here, in forward, backward and the choice of blocks."""
    case = cases.make(name, b=3, t=5)

    def both():
        given = {
            key: x.clone().requires_grad_() if x.is_floating_point() else x
            for key, x in case.tensors.items()
        }
        got = cases.results(case.call(**given))
        return *got, *cases.gradients(got, [given[key] for key in case.leaves], False)

    want = both()
    monkeypatch.setattr(sizes, "GRID", 4)
    assert all(torch.equal(a, b) for a, b in zip(both(), want, strict=True))


@pytest.mark.parametrize("heads", [1 << 15, 1 << 16])
def test_too_many_heads_are_refused(heads):
    q, k, v, gates = sequences(1, 1, heads, 1)
    calls = (
        lambda: nsa_kernels.nsa_attention(q, k, v, gates),
        lambda: nsa_kernels.sliding_window(q, k, v, window=4),
        lambda: nsa_kernels.selection_rows(q[0], k[0], v[0]),
    )
    for call in calls:
        with pytest.raises(ValueError, match=str(heads)):
            call()
