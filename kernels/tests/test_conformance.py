"""Every public call under every dtype and condition: it gives what the formula gives in float64, or
refuses by the sentence that ``conformance.py`` says. On the CPU by the interpreter, on a GPU the
same."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import conformance
import nsa_kernels
import oracle
import pytest
import torch
from nsa_kernels.attention.compression import MeanCompression
from nsa_kernels.attention.naive import naive_nsa
from nsa_kernels.band.naive import naive_compressed, naive_sliding_window
from nsa_kernels.scoring.naive import naive_block_scores, naive_select_blocks
from nsa_kernels.selection.blocks.naive import naive_blocks
from nsa_kernels.selection.ranges.naive import naive_ranges
from nsa_kernels.selection.rows.naive import naive_rows
from nsa_kernels.selection.varlen.naive import naive_varlen
from torch.utils.checkpoint import checkpoint

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
D = 16
TOKENS = 4
SPANS = ((0, 3), (2, 5))
Results = tuple[torch.Tensor, ...]
TOLERANCE = {**oracle.TOLERANCE, torch.float64: 1e-9}
SCALE = D**-0.5


@dataclass
class Case:
    """A call on named tensors, and its formula on the same. ``keys``: what a batch may share."""

    call: Callable[..., Any]
    formula: Callable[..., Any]
    tensors: dict[str, torch.Tensor]
    keys: tuple[str, ...]

    @property
    def leaves(self) -> list[str]:
        return [name for name, x in self.tensors.items() if x.is_floating_point()]


def draw(b: int, t: int, dtype: torch.dtype) -> Callable[..., torch.Tensor]:
    gen = torch.Generator().manual_seed(b + 10 * t)

    def of(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=gen).to(dtype).to(DEVICE)

    return of


def ints(*size: int, of: Any) -> torch.Tensor:
    return torch.tensor(of, dtype=torch.int32).expand(size).contiguous().to(DEVICE)


def edges(total: int, entries: int) -> torch.Tensor:
    """cu_seqlens of so many sequences, which share ``total`` tokens."""
    cu = [total * i // max(entries, 1) for i in range(entries + 1)]
    return torch.tensor(cu, dtype=torch.int32, device=DEVICE)


def rows(name: str, b: int, t: int, dtype: torch.dtype) -> Case:
    of, n = draw(b, t, dtype), b * min(t, 2)
    tensors = {"q": of(n, 2, D), "k": of(n, 5, D), "v": of(n, 5, D)}
    return Case(getattr(nsa_kernels, name), naive_rows, tensors, ("k", "v"))


def varlen(_: str, b: int, t: int, dtype: torch.dtype) -> Case:
    of, n = draw(b, t, dtype), b * min(t, 2)
    tensors = {"q": of(n, 2, D), "k": of(5, D), "v": of(5, D), "cu_seqlens": edges(5, n)}
    return Case(nsa_kernels.selection_varlen, naive_varlen, tensors, ("k", "v"))


def ranges(name: str, b: int, t: int, dtype: torch.dtype) -> Case:
    of, s = draw(b, t, dtype), min(t, 2)
    tensors = {
        "q": of(b, s, 1, 2, D),
        "k": of(b, 1, 6, D),
        "v": of(b, 1, 6, D),
        "ranges": ints(b, s, 1, 2, 2, of=SPANS),
    }

    def formula(**given: torch.Tensor) -> Any:
        results = naive_ranges(**given)
        return results if name == "selection_ranges" else results[0]

    return Case(getattr(nsa_kernels, name), formula, tensors, ("k", "v"))


def blocks(name: str, b: int, t: int, dtype: torch.dtype) -> Case:
    of = draw(b, t, dtype)
    tensors = {
        "q": of(b, t, 2, D),
        "k": of(b, t, 1, D),
        "v": of(b, t, 1, D),
        "block_indices": ints(b, t, 1, 2, of=(0, -1)),
    }

    def call(**given: torch.Tensor) -> Any:
        plan = None
        if name == "plan_blocks":
            plan = nsa_kernels.plan_blocks(**given, block_size=16)
        return nsa_kernels.block_selection_attention(**given, block_size=16, plan=plan)

    def formula(cu_seqlens: torch.Tensor | None = None, **given: torch.Tensor) -> Any:
        return naive_blocks(*given.values(), 16, SCALE, cu_seqlens)[0]

    return Case(call, formula, tensors, ("k", "v"))


def band(name: str, b: int, t: int, dtype: torch.dtype) -> Case:
    of = draw(b, t, dtype)
    if name == "sliding_window":
        tensors = {"q": of(b, t, 2, D), "k": of(b, t, 1, D), "v": of(b, t, 1, D)}
        options: dict[str, int] = {"window": 3}
    else:
        keys = max(0, (t - 2) // 1 + 1)
        tensors = {"q": of(b, t, 2, D), "k_cmp": of(b, keys, 1, D), "v_cmp": of(b, keys, 1, D)}
        options = {"block": 2, "stride": 1}
        if name == "compressed_attention_with_scores":
            options["block_size"] = 4

    def call(**given: torch.Tensor) -> Any:
        return getattr(nsa_kernels, name)(**given, **options)

    def formula(
        cu_seqlens: torch.Tensor | None = None,
        cu_keys: torch.Tensor | None = None,
        **x: torch.Tensor,
    ) -> Any:
        if cu_seqlens is not None:
            lengths = cu_seqlens.diff().tolist()
            keep = oracle.window_mask(lengths, 3) if cu_keys is None else None
            if keep is None:
                keep = oracle.compressed_mask(lengths, 2, 1)
            return oracle.banded(*x.values(), keep.to(DEVICE))[:2]
        if name == "sliding_window":
            return naive_sliding_window(**x, window=3)
        out = naive_compressed(**x, block=2, stride=1)
        if name == "compressed_attention":
            return out
        scores = naive_block_scores(x["q"].detach(), x["k_cmp"].detach(), **options)
        return (*out, scores)

    return Case(call, formula, tensors, tuple(tensors)[1:])


def choice(_: str, b: int, t: int, dtype: torch.dtype) -> Case:
    tensors = {"scores": draw(b, t, dtype)(b, t, 1, 4).abs()}

    def formula(scores: torch.Tensor) -> torch.Tensor:
        chosen = naive_select_blocks(scores, 3, block_size=2).unsqueeze(-1)
        position = torch.arange(t, device=DEVICE).view(1, t, 1, 1, 1)
        ends = torch.minimum(chosen * 2 + 2, position + 1)
        spans = torch.cat([chosen * 2, ends], -1)
        return torch.where(chosen >= 0, spans, 0).to(torch.int32)

    def call(scores: torch.Tensor, **more: torch.Tensor) -> torch.Tensor:
        return nsa_kernels.select_blocks(scores, 3, block_size=2, **more)

    return Case(call, formula, tensors, ("scores",))


def decoded(name: str, b: int, t: int, dtype: torch.dtype) -> Case:
    of = draw(b, t, dtype)
    cache = {"k": of(b, 1, t + 1, D), "v": of(b, 1, t + 1, D)}
    names = ("k_cmp", "v_cmp") if name == "decode_compressed" else ("k", "v")
    tensors = {"q": of(b, 2, D), **dict(zip(names, cache.values(), strict=True))}
    options: dict[str, int] = {}
    if name == "decode_window":
        options["window"] = 3
    if name == "decode_selected":
        tensors["ranges"] = ints(b, 1, 2, 2, of=SPANS)

    def formula(**x: torch.Tensor) -> Any:
        q, k, v = (x[key] for key in ("q", *names))
        if name == "decode_selected":
            out, lse = naive_ranges(q.unsqueeze(1).unsqueeze(2), k, v, x["ranges"].unsqueeze(1))
            return out.flatten(1, 3), lse.flatten(1, 3)
        near = 3 if name == "decode_window" else k.shape[2]
        out, lse = naive_rows(q, k[:, 0, -near:], v[:, 0, -near:])
        return out, lse

    def call(**given: torch.Tensor) -> Any:
        return getattr(nsa_kernels, name)(**given, **options)

    return Case(call, formula, tensors, names)


SIZES = {"block": 2, "stride": 2, "block_size": 16}


def scored(_: str, b: int, t: int, dtype: torch.dtype) -> Case:
    of = draw(b, t, dtype)
    tensors = {"q": of(b, 2, D), "k_cmp": of(b, 1, t, D)}
    logits = torch.einsum("bhd,bnd->bhn", tensors["q"].double(), tensors["k_cmp"][:, 0].double())
    tensors["lse"] = torch.logsumexp(logits * SCALE, -1).float()

    def call(**given: torch.Tensor) -> Any:
        return nsa_kernels.decode_scores(**given, n_blocks=1, **SIZES)

    def formula(q: torch.Tensor, k_cmp: torch.Tensor, lse: torch.Tensor) -> Any:
        p = torch.exp(torch.einsum("bhd,bnd->bhn", q, k_cmp[:, 0]) * SCALE - lse.unsqueeze(-1))
        return p.sum((1, 2)).view(-1, 1, 1)  # all keys, each a stride of the only block

    return Case(call, formula, tensors, ("k_cmp",))


def step(name: str, b: int, t: int, dtype: torch.dtype) -> Case:
    """Of a cache with lengths, entries of T, T - 1, … tokens, with room for more."""
    varied = name != "decode_step"
    of, held = draw(b, t, dtype), [max(t - i, 0) for i in range(b)]
    room = t + 3 if varied else t
    tensors = {
        "q": of(b, 2, D),
        "k": of(b, 1, room, D),
        "v": of(b, 1, room, D),
        "k_cmp": of(b, 1, room // 2, D),
        "v_cmp": of(b, 1, room // 2, D),
        "gates": of(b, 2, 3),
    }
    if varied:
        tensors["cache_seqlens"] = ints(b, of=held)
    if name == "decode_step with block_table":
        pages = -(-room // 4)
        tensors |= {key: of(b * pages, 1, 4, D) for key in ("k", "v")}
        table = torch.arange(b * pages).flip(0).view(b, pages)
        tensors["block_table"] = table.to(torch.int32).to(DEVICE)
    options = {**SIZES, "n_selected": 3, "window": 3}

    def call(**given: torch.Tensor) -> Any:
        return nsa_kernels.decode_step(**given, **options)

    def formula(**x: torch.Tensor) -> Any:
        q, k, v, k_cmp, v_cmp, gates = list(x.values())[:6]
        if "block_table" in x:
            k, v = (p[x["block_table"].long()].transpose(1, 2).flatten(2, 3) for p in (k, v))
        sums = [q.new_zeros(0, 2, D)]
        for i, n in enumerate(held if varied else [t] * b):
            parts = [(k_cmp[i, :, : n // 2], v_cmp[i, :, : n // 2]), (k[i, :, :n], v[i, :, :n])]
            parts.append((parts[1][0][:, -3:], parts[1][1][:, -3:]))
            branches = [naive_rows(q[i : i + 1], a, c)[0] for a, c in parts]
            sums.append((gates[i : i + 1].unsqueeze(-1) * torch.stack(branches, -2)).sum(-2))
        return torch.cat(sums)

    return Case(call, formula, tensors, ("k", "v", "k_cmp", "v_cmp"))


def summed(_: str, b: int, t: int, dtype: torch.dtype) -> Case:
    of, names = draw(b, t, dtype), ("compressed", "selected", "window")
    tensors = {name: of(b, t, D) for name in names} | {"gates": of(b, t, 3)}

    def formula(gates: torch.Tensor, **x: torch.Tensor) -> Any:
        return (gates.unsqueeze(-1) * torch.stack(list(x.values()), -2)).sum(-2)

    return Case(nsa_kernels.gated_sum, formula, tensors, names)


def whole(name: str, b: int, t: int, dtype: torch.dtype) -> Case:
    of, compress = draw(b, t, dtype), MeanCompression(2, 2)
    cached = 2 if name == "nsa_attention with fewer queries" else 0
    tensors = {"q": of(b, t, 2, D), "k": of(b, cached + t, 1, D), "v": of(b, cached + t, 1, D)}
    tensors["gates"] = of(b, t, 2, 3)
    sizes = {**SIZES, "n_selected": 3, "window": 3}

    def call(**given: torch.Tensor) -> Any:
        return nsa_kernels.nsa_attention(**given, **sizes)

    def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gates: torch.Tensor) -> Any:
        cmp = (mean_of(compress, x) for x in (k, v))
        # Of the cached tokens the queries are nobody's.
        q, gates = (torch.cat([x[:, :1].expand(-1, cached, -1, -1), x], 1) for x in (q, gates))
        return naive_nsa(q, k, v, *cmp, gates, **sizes)[:, cached:]

    def formula(cu_seqlens: torch.Tensor | None = None, **x: torch.Tensor) -> Any:
        if cu_seqlens is None:
            return exact(**x)
        parts = [
            exact(**{key: y[:, a:e] for key, y in x.items()})
            for a, e in pairwise(cu_seqlens.tolist())
        ]
        return torch.cat(parts, 1)

    return Case(call, formula, tensors, ("k", "v"))


def mean_of(compress: MeanCompression, x: torch.Tensor) -> torch.Tensor:
    """Its mean in float64."""
    return x.unfold(1, 2, 2).mean(-1) if x.shape[1] >= 2 else compress(x)


def layer(name: str, b: int, t: int, dtype: torch.dtype) -> Case:
    torch.manual_seed(0)
    sizes = {**SIZES, "n_selected": 3, "window": 3}
    of = nsa_kernels.NSAttention(8, 2, 1, D, **sizes).to(DEVICE, dtype).requires_grad_(False)
    exact = copy.deepcopy(of).double()
    cached = name == "NSAttention with a cache"

    def call(x: torch.Tensor, **more: torch.Tensor) -> Any:
        if not cached:
            return of(x, **more)
        cache = of.cache()
        first = of(x[:, :-1], cache, **more)
        return torch.cat([first, of(x[:, -1:], cache)], 1)

    def formula(x: torch.Tensor, cu_seqlens: torch.Tensor | None = None) -> Any:
        if cu_seqlens is not None:
            return torch.cat([formula(x[:, a:e]) for a, e in pairwise(cu_seqlens.tolist())], 1)
        q, k, v, gates = exact.project(x)
        out = naive_nsa(q, k, v, exact.compress_k(k), exact.compress_v(v), gates, **sizes)
        return exact.to_out(out.flatten(-2))

    return Case(call, formula, {"x": draw(b, t, dtype)(b, t + cached, 8)}, ("x",))


MAKE: dict[str, Callable[[str, int, int, torch.dtype], Case]] = {
    "selection_rows": rows,
    "selection_rows_per_head": rows,
    "selection_varlen": varlen,
    "selection_ranges": ranges,
    "selection_attention": ranges,
    "packed_sdpa": ranges,
    "block_selection_attention": blocks,
    "plan_blocks": blocks,
    "sliding_window": band,
    "compressed_attention": band,
    "compressed_attention_with_scores": band,
    "select_blocks": choice,
    "decode_compressed": decoded,
    "decode_window": decoded,
    "decode_selected": decoded,
    "decode_scores": scored,
    "decode_step": step,
    "decode_step with cache_seqlens": step,
    "decode_step with block_table": step,
    "gated_sum": summed,
    "nsa_attention": whole,
    "nsa_attention with fewer queries": whole,
    "NSAttention": layer,
    "NSAttention with a cache": layer,
}


def results(of: Any) -> Results:
    return of if isinstance(of, tuple) else (of,)


def check(name: str, got: Results, want: Results, dtype: torch.dtype) -> None:
    """The results are those of the formula, in the dtype they must have."""
    assert len(got) == len(want)
    for i, (a, w) in enumerate(zip(got, want, strict=True)):
        assert a.shape == w.shape
        if not a.is_floating_point():
            assert torch.equal(a.long(), w.long())
            continue
        scores = i > 0 or name == "decode_scores"
        assert a.dtype in (dtype, torch.float32) if scores else a.dtype == dtype
        # A layer rounds what it projects, too, and its output.
        near = TOLERANCE[dtype] * (4 if name.startswith("NSAttention") else 1)
        torch.testing.assert_close(a.double(), w.double(), atol=near, rtol=near)


def gradients(of: Results, leaves: list[torch.Tensor], again: bool) -> Results:
    """Of a sum with weights, which are the same for every caller; of its gradient once more."""
    loss: Any = 0.0
    for x in of:
        if x.requires_grad:
            weights = torch.arange(x.numel(), device=x.device).view(x.shape).double().cos()
            loss = loss + (x.double().masked_fill(x.isinf(), 0.0) * weights).sum()
    if isinstance(loss, float):
        return ()  # block numbers are no function that has a derivative
    first = torch.autograd.grad(loss, leaves, create_graph=again)
    if not again:
        return first
    return torch.autograd.grad(sum(x.double().square().sum() for x in first), leaves)


def walk(name: str, dtype: torch.dtype, condition: str) -> None:
    """Do what a cell says, and check what comes of it."""
    entries = {"B > 1": 2, "expanded": 2, "zero-size": 0}.get(condition, 1)
    case = MAKE[name](name, entries, 1 if condition == "T = 1" else TOKENS, dtype)
    tensors, call = dict(case.tensors), case.call
    if condition == "strided":
        for key, x in tensors.items():
            if key != "cu_seqlens":
                tensors[key] = torch.stack([x, x], -1)[..., 0]
    if condition == "expanded":
        for key in case.keys:
            x = tensors[key]
            tensors[key] = x[:1].expand(x.shape)
    if condition == "negative view":
        # One alone: the minus of two would cancel.
        first = case.leaves[0]
        tensors[first] = torch._neg_view(-tensors[first])
    if condition == "packed":
        tensors["cu_seqlens"] = tensors.get("cu_seqlens", edges(TOKENS, 2))
        if name == "compressed_attention":
            keys = (tensors["cu_seqlens"].diff() - 1).cumsum(0, dtype=torch.int32)
            tensors["cu_keys"] = torch.nn.functional.pad(keys, (1, 0))
            tensors |= {key: tensors[key][:, : int(keys[-1])] for key in case.keys}
    wanted = condition in ("zero-size", "no_grad", *conformance.WANT_GRADIENTS)
    wanted = wanted and not (condition == "zero-size" and name in WITHOUT_GRADIENTS)
    leaves = case.leaves[:1] if condition == "Parameter" else case.leaves
    if wanted:
        of = torch.nn.Parameter if condition == "Parameter" else torch.Tensor.requires_grad_
        tensors |= {key: of(tensors[key].detach()) for key in leaves}
    doubled = {
        key: x.detach().double().requires_grad_(wanted and key in leaves)
        if x.is_floating_point()
        else x
        for key, x in tensors.items()
    }
    again = condition == "second derivative"

    refused = conformance.refusal(name, str(dtype).removeprefix("torch."), condition)

    def run() -> Results:
        if condition == "no_grad":
            with torch.no_grad():
                return results(call(**tensors))
        if condition == "inference_mode":
            with torch.inference_mode():
                return tuple(x.clone() for x in results(call(**tensors)))
        if condition == "autocast":
            with torch.autocast(DEVICE, torch.bfloat16):
                return results(call(**tensors))
        if condition == "checkpoint":
            return results(checkpoint(call, use_reentrant=False, **tensors))
        if condition == "compile":
            torch._dynamo.reset()
            # A cache is a Python object, and an exception leaves a graph.
            whole = refused is None and name != "NSAttention with a cache"
            return results(torch.compile(call, fullgraph=whole, backend="aot_eager")(**tensors))
        if condition == "CUDA graph":
            return captured(call, tensors)
        if condition == "torch.func":
            key = next(iter(tensors))

            def loss(x: torch.Tensor) -> torch.Tensor:
                return results(call(**{**tensors, key: x}))[0].sum()

            return results(torch.func.grad(loss)(tensors[key]))
        return results(call(**tensors))

    def differentiated(of: Results) -> Results:
        return gradients(of, [tensors[key] for key in leaves], again)

    if refused is not None:
        with pytest.raises((TypeError, ValueError, RuntimeError)) as caught:
            differentiated(run())
        # torch 2.11 leaves a checkpoint's hooks in place while a frame holds its generator.
        traceback.clear_frames(caught.tb)
        assert type(caught.value).__name__ == refused.error, caught.value
        assert refused.matches(name, str(caught.value)), caught.value
        return
    got, want = run(), results(case.formula(**doubled))
    if name.startswith("NSAttention") and condition == "autocast":
        dtype = torch.bfloat16  # of its projections, as of any layer's
    check(name, got, want, dtype)
    if wanted and condition != "no_grad":
        found = differentiated(got)
        if name == "select_blocks":
            assert found == ()
            return
        check_gradients(found, gradients(want, [doubled[key] for key in leaves], again), dtype)


WITHOUT_GRADIENTS = (*conformance.NO_BACKWARD, "nsa_attention with fewer queries")


def check_gradients(got: Results, want: Results, dtype: torch.dtype) -> None:
    assert len(got) == len(want)
    for a, w in zip(got, want, strict=True):
        assert a.dtype == dtype and a.shape == w.shape
        near = 4 * TOLERANCE[dtype]
        torch.testing.assert_close(a.double(), w, atol=near, rtol=near)


def captured(call: Callable[..., Any], tensors: dict[str, torch.Tensor]) -> Results:
    """The results of a graph's replay, after its inputs were something else when it was made."""
    values = {key: x.clone() for key, x in tensors.items()}
    for x in tensors.values():
        if x.is_floating_point():
            x.zero_()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call(**tensors)  # kernels are compiled before
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = results(call(**tensors))
    for key, x in tensors.items():
        x.copy_(values[key])
    graph.replay()
    torch.cuda.synchronize()
    return got


def here() -> list[tuple[str, str, str]]:
    """All cells on a GPU; without one those of its own, of two dtypes the ones where they count."""
    if DEVICE == "cuda":
        return list(conformance.cells())
    some = ("plain", "autocast", "gradient")
    return [
        (call, dtype, condition)
        for call, dtype, condition in conformance.cells()
        if condition != "CUDA graph" and (dtype in ("float32", "float64") or condition in some)
    ]


@pytest.mark.parametrize(("call", "dtype", "condition"), here())
def test_it_works_or_says_why_not(call: str, dtype: str, condition: str) -> None:
    walk(call, getattr(torch, dtype), condition)


def test_every_public_function_is_in_the_table() -> None:
    settings = {"chosen_config", "default_policy", "reset_routing_report", "routing_report"}
    functions = {name for name in nsa_kernels.__all__ if name.islower()}
    assert functions - settings == {
        name for name in conformance.CALLS if name.islower() and name.isidentifier()
    }


def test_no_refusal_is_one_of_no_cell() -> None:
    used = {conformance.refusal(*cell) for cell in conformance.cells()} - {None}
    assert used == set(conformance.REFUSALS)
