"""What the tests share: tensors, public calls with their formulas in float64, and comparisons."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import conformance
import nsa_kernels
import torch
from nsa_kernels.attention.naive import naive_nsa
from nsa_kernels.band.naive import attend, naive_compressed, naive_sliding_window
from nsa_kernels.scoring.naive import naive_block_scores, naive_select_blocks
from nsa_kernels.selection.blocks.naive import naive_blocks
from nsa_kernels.selection.ranges.naive import naive_ranges
from nsa_kernels.selection.rows.naive import naive_rows
from nsa_kernels.selection.varlen.naive import naive_varlen
from torch.nn.functional import pad

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float16, torch.bfloat16, torch.float32]
# All shapes in all dtypes would take minutes in the interpreter, so only a GPU runs them.
HERE = DTYPES if DEVICE == "cuda" else [torch.float32]
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1.5e-2, torch.float32: 2e-5, torch.float64: 1e-9}
"""Largest error of an output for N(0, 1) inputs; for a gradient, relative to its norm."""
Tensors = tuple[torch.Tensor, ...]


def normal(dtype=torch.float32, seed=0):
    """Return a function that draws N(0, 1) tensors of given sizes, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*size):
        return torch.randn(size, generator=generator).to(dtype).to(DEVICE)

    return draw


def ints(*values):
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def offsets(lengths):
    """Return the cu_seqlens of sequences of these lengths."""
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32).to(DEVICE)


def random_spans(*size, keys, seed=0):
    """Return int32 spans [*size, 2]. Some overlap, are reversed or out of bounds; the first query's
    are empty."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randint(-5, keys, size, generator=generator)
    spans = torch.stack([start, start + torch.randint(-3, 30, size, generator=generator)], -1)
    spans[:1, :1, :1] = 0
    return spans.to(torch.int32).to(DEVICE)


def random_blocks(*size, keys, block_size, seed=0):
    """Return int32 indices of blocks. Some are -1, repeated, or past the last key."""
    generator = torch.Generator().manual_seed(seed)
    index = torch.randint(-1, -(-keys // block_size) + 1, size, generator=generator)
    return index.to(torch.int32).to(DEVICE)


def paged(x, page, heads_last=False):
    """Return the pages of a cache [B, H, S, D] in random order, and the block table. Unused pages
    hold NaN. If ``heads_last``, memory has the order [pages, page, H, D]."""
    b, h, s, d = x.shape
    n = -(-s // page)
    order = torch.randperm(b * n + 3, generator=torch.Generator().manual_seed(page))[: b * n]
    order = order.to(DEVICE)
    pool = x.new_full((b * n + 3, page, h, d), math.nan)
    whole = pad(x, (0, 0, 0, n * page - s)).unflatten(2, (n, page))
    pool[order] = whole.permute(0, 2, 3, 1, 4).flatten(0, 1)
    pool = pool.transpose(1, 2)
    return pool if heads_last else pool.contiguous(), order.view(b, n).to(torch.int32)


def doubled(tensors):
    """Return the tensors without their autograd history. Floating dtypes become float64."""
    return {
        key: x.detach().double() if torch.is_tensor(x) and x.is_floating_point() else x
        for key, x in tensors.items()
    }


def window_mask(lengths, window):
    """Return bool [T, T]: whether a query sees a key, in windows of packed sequences."""
    masks = [torch.ones(n, n).tril().triu(1 - min(window, n)) for n in lengths]
    return torch.block_diag(*masks).bool().to(DEVICE)


def complete_mask(lengths, block, stride):
    """Return bool [T, N]: whether all tokens of a compressed key are at or before the query."""
    ends = [torch.arange(block - 1, max(n, block - 1), stride) for n in lengths]
    masks = [x <= torch.arange(n)[:, None] for x, n in zip(ends, lengths, strict=True)]
    return torch.block_diag(*(x.float() for x in masks)).bool().to(DEVICE)


def mean(x, block, stride):
    """Return the mean of each block of tokens of x [B, T, ...], or none if T is too small."""
    return x.unfold(1, block, stride).mean(-1) if x.shape[1] >= block else x[:, :0]


def exact_nsa(q, k, v, gates, cu_seqlens=None, **sizes):
    """Compute ``nsa_attention`` by its formula in float64. The last query is at the last key."""
    if cu_seqlens is not None:
        edges = cu_seqlens.tolist()
        parts = [
            exact_nsa(*(x[:, a:e] for x in (q, k, v, gates)), **sizes) for a, e in pairwise(edges)
        ]
        return pad(torch.cat(parts, 1), (0, 0, 0, 0, 0, q.shape[1] - edges[-1]))
    q, k, v, gates = (x.double() for x in (q, k, v, gates))
    before = k.shape[1] - q.shape[1]
    q, gates = (torch.cat([x[:, :1].expand(-1, before, -1, -1), x], 1) for x in (q, gates))
    means = (mean(x, sizes["block"], sizes["stride"]) for x in (k, v))
    return naive_nsa(q, k, v, *means, gates, **sizes)[:, before:]


def exact_scores(p, n_blocks, *, block, stride, block_size):
    """Return the block scores [H, n_blocks] of a token with the compressed weights p [H, Nc]."""
    scores = p.new_zeros(p.shape[0], n_blocks)
    for key in range(p.shape[1]):
        for part in range(key, key + block // stride):
            scores[:, part * stride // block_size] += p[:, key]
    return scores


def exact_step(q, k, v, k_cmp, v_cmp, gates, lengths, *, n_selected, window, **sizes):
    """Compute ``decode_step`` [B, HQ, Dv] by its formula in float64, one entry at a time."""
    sums = [v.new_zeros(0, q.shape[1], v.shape[3], dtype=torch.float64)]
    for i, n in enumerate(lengths):
        complete = max(0, (n - sizes["block"]) // sizes["stride"] + 1)
        query = q[i].double().unflatten(0, (k.shape[1], -1))
        fine = [x[i, :, :n].double() for x in (k, v)]
        coarse = [x[i, :, :complete].double() for x in (k_cmp, v_cmp)]
        compressed, lse = naive_rows(query, *coarse)
        near, _ = naive_rows(query, *(x[:, max(0, n - window) :] for x in fine))
        weights = torch.exp(query @ coarse[0].mT * q.shape[2] ** -0.5 - lse.unsqueeze(-1)).sum(1)
        scores = exact_scores(weights, -(-n // sizes["block_size"]), **sizes)[None, None]
        numbers = {"block_size": sizes["block_size"], "first_position": n - 1}
        of_key = torch.arange(n, device=q.device) // sizes["block_size"]
        selected = []
        for h, chosen in enumerate(naive_select_blocks(scores, n_selected, **numbers)[0, 0]):
            keep = torch.isin(of_key, chosen)
            selected.append(naive_rows(query[h, None], *(x[h, keep][None] for x in fine))[0])
        branches = torch.stack([compressed, torch.cat(selected), near], -2).flatten(0, 1)
        sums.append((gates[i].double().unsqueeze(-1) * branches).sum(-2)[None])
    return torch.cat(sums)


@dataclass
class Case:
    """A public call, its formula, and tensors for both. A batch may share those that ``keys``
    names."""

    call: Callable[..., Any]
    formula: Callable[..., Any]
    tensors: dict[str, torch.Tensor]
    keys: tuple[str, ...]

    @property
    def leaves(self):
        return [name for name, x in self.tensors.items() if x.is_floating_point()]


@dataclass(frozen=True)
class Sizes:
    """B entries of T tokens, HQ query heads on H key heads of dims D and Dv, and other sizes.

    If ``spans`` or ``blocks`` is 0, the case has a few fixed ones.
    """

    b: int = 1
    t: int = 4
    dtype: torch.dtype = torch.float32
    hq: int = 2
    h: int = 1
    d: int = 16
    dv: int = 16
    n: int = 6
    lengths: tuple[int, ...] = ()
    spans: int = 0
    blocks: int = 0
    block: int = 2
    stride: int = 1
    block_size: int = 16
    n_selected: int = 3
    window: int = 3

    @property
    def overlap(self):
        return {"block": self.block, "stride": self.stride, "block_size": self.block_size}

    @property
    def whole(self):
        return {**self.overlap, "n_selected": self.n_selected, "window": self.window}

    def complete(self, tokens):
        """Return how many compressed keys are complete after so many tokens."""
        return max(0, (tokens - self.block) // self.stride + 1)

    def heads(self, keys):
        """Return q [B, T, HQ, D], k [B, keys, H, D] and v [B, keys, H, Dv]."""
        draw = normal(self.dtype, seed=self.t)
        b, h = self.b, self.h
        return draw(b, self.t, self.hq, self.d), draw(b, keys, h, self.d), draw(b, keys, h, self.dv)


def rows(name, s):
    draw, rows = normal(s.dtype, seed=s.n), s.b * s.t
    tensors = {"q": draw(rows, s.hq, s.d), "k": draw(rows, s.n, s.d), "v": draw(rows, s.n, s.dv)}
    return Case(getattr(nsa_kernels, name), naive_rows, tensors, ("k", "v"))


def varlen(_, s):
    """Make rows of the given lengths, or B * T rows that divide N keys. A last key is in no row."""
    rows = s.b * s.t
    lengths = s.lengths or [s.n * (i + 1) // rows - s.n * i // rows for i in range(rows)]
    draw, total = normal(s.dtype, seed=s.n), sum(lengths) + 1
    tensors = {"q": draw(len(lengths), s.hq, s.d), "k": draw(total, s.d), "v": draw(total, s.dv)}
    tensors["cu_seqlens"] = offsets(lengths)
    return Case(nsa_kernels.selection_varlen, naive_varlen, tensors, ("k", "v"))


def ranges(name, s):
    draw, size = normal(s.dtype, seed=s.n), (s.b, s.t, s.h)
    tensors = {
        "q": draw(*size, s.hq // s.h, s.d),
        "k": draw(s.b, s.h, s.n, s.d),
        "v": draw(s.b, s.h, s.n, s.dv),
    }
    some = ints(0, 3, 2, 5).view(2, 2).expand(*size, 2, 2).contiguous()
    tensors["ranges"] = random_spans(*size, s.spans, keys=s.n) if s.spans else some

    def formula(**given):
        results = naive_ranges(**given)
        return results if name == "selection_ranges" else results[0]

    return Case(getattr(nsa_kernels, name), formula, tensors, ("k", "v"))


def blocks(name, s):
    size, numbers = (s.b, s.t, s.h), {"block_size": s.block_size}
    tensors = dict(zip("qkv", s.heads(s.t), strict=True))
    some = ints(0, -1).expand(*size, 2).contiguous()
    tensors["block_indices"] = (
        random_blocks(*size, s.blocks, keys=s.t, **numbers) if s.blocks else some
    )

    def call(**given):
        plan = nsa_kernels.plan_blocks(**given, **numbers) if name == "plan_blocks" else None
        given = {"plan": plan, "return_lse": True, **given}
        return nsa_kernels.block_selection_attention(**given, **numbers)

    def formula(cu_seqlens=None, **given):
        return naive_blocks(*given.values(), s.block_size, s.d**-0.5, cu_seqlens)

    return Case(call, formula, tensors, ("k", "v"))


def band(name, s):
    near = name == "sliding_window"
    names = ("q", "k", "v") if near else ("q", "k_cmp", "v_cmp")
    tensors = dict(zip(names, s.heads(s.t if near else s.complete(s.t)), strict=True))
    options = {"window": s.window} if near else {"block": s.block, "stride": s.stride}
    if name == "compressed_attention_with_scores":
        options = s.overlap

    def call(**given):
        return getattr(nsa_kernels, name)(**given, **options)

    def formula(cu_seqlens=None, cu_keys=None, **x):
        if cu_seqlens is not None:
            lengths = cu_seqlens.diff().tolist()
            seen = window_mask(lengths, s.window)
            if not near:
                seen = complete_mask(lengths, s.block, s.stride)
            (tokens, keys), (q, k, v) = seen.shape, x.values()
            seen = pad(seen, (0, k.shape[1] - keys, 0, q.shape[1] - tokens))
            return attend(q, k, v, seen, None)
        if near:
            return naive_sliding_window(**x, window=s.window)
        results = naive_compressed(**x, block=s.block, stride=s.stride)
        if name == "compressed_attention":
            return results
        return *results, naive_block_scores(x["q"].detach(), x["k_cmp"].detach(), **s.overlap)

    return Case(call, formula, tensors, names[1:])


def choice(_, s):
    tensors = {"scores": normal(s.dtype)(s.b, s.t, s.h, max(4, -(-s.t // 2))).abs()}

    def formula(scores):
        chosen = naive_select_blocks(scores, 3, block_size=2).unsqueeze(-1)
        position = torch.arange(s.t, device=DEVICE).view(1, s.t, 1, 1, 1)
        spans = torch.cat([chosen * 2, torch.minimum(chosen * 2 + 2, position + 1)], -1)
        return torch.where(chosen >= 0, spans, 0).to(torch.int32)

    def call(scores, **more):
        return nsa_kernels.select_blocks(scores, 3, block_size=2, **more)

    return Case(call, formula, tensors, ("scores",))


def decoded(name, s):
    draw = normal(s.dtype, seed=s.t)
    names = ("k_cmp", "v_cmp") if name == "decode_compressed" else ("k", "v")
    tensors = {"q": draw(s.b, s.hq, s.d), names[0]: draw(s.b, s.h, s.t + 1, s.d)}
    tensors[names[1]] = draw(s.b, s.h, s.t + 1, s.dv)
    options = {"window": s.window} if name == "decode_window" else {}
    if name == "decode_selected":
        tensors["ranges"] = ints(0, 3, 2, 5).view(2, 2).expand(s.b, s.h, 2, 2).contiguous()

    def formula(**x):
        q, k, v = (x[key] for key in ("q", *names))
        spans = ints(max(k.shape[2] - options.get("window", k.shape[2]), 0), k.shape[2])
        spans = x.get("ranges", spans.expand(s.b, s.h, 1, 2)).unsqueeze(1)
        out, lse = naive_ranges(q.unflatten(1, (s.h, -1)).unsqueeze(1), k, v, spans)
        return out.flatten(1, 3), lse.flatten(1, 3)

    def call(**given):
        return getattr(nsa_kernels, name)(**given, **options)

    return Case(call, formula, tensors, names)


def scored(_, s):
    draw = normal(s.dtype, seed=s.t)
    q, k_cmp = draw(s.b, s.hq, s.d), draw(s.b, s.h, s.t, s.d)
    blocks = max(1, -(-(s.t * s.stride + s.block) // s.block_size))

    def weights(q, k_cmp):
        return q.unflatten(1, (s.h, -1)) @ k_cmp.mT * s.d**-0.5

    lse = torch.logsumexp(weights(q.double(), k_cmp.double()), -1).flatten(1, 2)
    tensors = {"q": q, "k_cmp": k_cmp, "lse": lse.float()}

    def call(**given):
        return nsa_kernels.decode_scores(**given, n_blocks=blocks, **s.overlap)

    def formula(q, k_cmp, lse):
        p = torch.exp(weights(q, k_cmp) - lse.unflatten(1, (s.h, -1)).unsqueeze(-1)).sum(2)
        scores = [exact_scores(of_entry, blocks, **s.overlap) for of_entry in p]
        return torch.stack(scores) if scores else p.new_zeros(0, s.h, blocks)

    return Case(call, formula, tensors, ("k_cmp",))


def step(name, s):
    """Make a decode step. Caches of T tokens hold the given lengths, then keys of 90 and NaN
    values. Else, caches of ``decode_step`` are full, and others hold T, T - 1, … of T + 3
    tokens."""
    varied = name != "decode_step"
    draw, room = normal(s.dtype, seed=s.t), s.t + 3 if varied and not s.lengths else s.t
    lengths = s.lengths or [max(s.t - i, 0) if varied else s.t for i in range(s.b)]
    b, keys = len(lengths), s.complete(room)
    tensors = {"q": draw(b, s.hq, s.d), "k": draw(b, s.h, room, s.d), "v": draw(b, s.h, room, s.dv)}
    tensors |= {"k_cmp": draw(b, s.h, keys, s.d), "v_cmp": draw(b, s.h, keys, s.dv)}
    tensors["gates"] = draw(b, s.hq, 3)
    for i, n in enumerate(s.lengths):
        for suffix, held in (("", max(n, 0)), ("_cmp", s.complete(n))):
            tensors["k" + suffix][i, :, held:], tensors["v" + suffix][i, :, held:] = 90.0, math.nan
    if varied:
        tensors["cache_seqlens"] = ints(*lengths)
    lengths = [min(max(n, 0), room) for n in lengths]
    if name == "decode_step with block_table":
        pages = -(-room // 4)
        tensors |= {"k": draw(s.b * pages, s.h, 4, s.d), "v": draw(s.b * pages, s.h, 4, s.dv)}
        tensors["block_table"] = ints(*range(s.b * pages)).flip(0).view(s.b, pages)

    def call(**given):
        return nsa_kernels.decode_step(**given, **s.whole)

    def formula(**x):
        q, k, v, *others = list(x.values())[:6]
        if "block_table" in x:
            k, v = (p[x["block_table"].long()].transpose(1, 2).flatten(2, 3) for p in (k, v))
        return exact_step(q, k, v, *others, lengths, **s.whole)

    return Case(call, formula, tensors, ("k", "v", "k_cmp", "v_cmp"))


def summed(_, s):
    draw, names = normal(s.dtype), ("compressed", "selected", "window")
    tensors = {name: draw(s.b, s.t, s.d) for name in names} | {"gates": draw(s.b, s.t, 3)}

    def formula(gates, **x):
        return (gates.unsqueeze(-1) * torch.stack(list(x.values()), -2)).sum(-2)

    return Case(nsa_kernels.gated_sum, formula, tensors, names)


def whole(name, s):
    cached = 2 if name == "nsa_attention with fewer queries" else 0
    tensors = dict(zip("qkv", s.heads(cached + s.t), strict=True))
    tensors["gates"] = normal(s.dtype, seed=1)(s.b, s.t, s.hq, 3)

    def call(**given):
        return nsa_kernels.nsa_attention(**given, **s.whole)

    def formula(**given):
        return exact_nsa(**given, **s.whole)

    return Case(call, formula, tensors, ("k", "v"))


def layer(name, s):
    torch.manual_seed(0)
    made = nsa_kernels.NSAttention(8, s.hq, s.h, s.d, **s.whole).to(DEVICE, s.dtype)
    made.requires_grad_(False)
    exact, cached = copy.deepcopy(made).double(), name == "NSAttention with a cache"

    def call(x, **more):
        if not cached:
            return made(x, **more)
        cache = made.cache()
        first = made(x[:, :-1], cache, **more)
        return torch.cat([first, made(x[:, -1:], cache)], 1)

    def formula(x, cu_seqlens=None):
        return exact.to_out(exact_nsa(*exact.project(x), cu_seqlens, **s.whole).flatten(-2))

    return Case(call, formula, {"x": normal(s.dtype)(s.b, s.t + cached, 8)}, ("x",))


# Makers of cases by the beginning of a call's name. The first that fits is used.
BEGINNINGS = {
    "selection_rows": rows,
    "selection_varlen": varlen,
    "selection_": ranges,
    "packed_sdpa": ranges,
    "block_selection": blocks,
    "plan_blocks": blocks,
    "sliding_window": band,
    "compressed": band,
    "select_blocks": choice,
    "decode_scores": scored,
    "decode_step": step,
    "decode_": decoded,
    "gated_sum": summed,
    "nsa_attention": whole,
    "NSAttention": layer,
}
MAKERS = {
    name: next(maker for begin, maker in BEGINNINGS.items() if name.startswith(begin))
    for name in conformance.CALLS
}


def make(name, **sizes):
    """Return the case of a public call."""
    return MAKERS[name](name, Sizes(**sizes))


def packed(name, lengths, *, tail=0, **sizes):
    """Return the case of packed sequences, followed by ``tail`` tokens of no sequence."""
    case, s = make(name, t=sum(lengths) + tail, **sizes), Sizes(**sizes)
    case.tensors["cu_seqlens"] = offsets(lengths)
    if "k_cmp" in case.tensors:
        keys = [s.complete(n) for n in lengths]
        case.tensors["cu_keys"] = offsets(keys)
        case.tensors |= {key: case.tensors[key][:, : sum(keys)] for key in case.keys}
    return case


def draw_blocks(b, t, hq, h, d, dv, chosen, dtype, size=64):
    """Return q, k, v, the gradient of the output, and indices of blocks."""
    sizes = {"b": b, "t": t, "hq": hq, "h": h, "d": d, "dv": dv, "dtype": dtype}
    case = make("block_selection_attention", **sizes, blocks=chosen, block_size=size)
    q, k, v, index = case.tensors.values()
    return q, k, v, normal(dtype, seed=1)(b, t, hq, dv), index


def exact_blocks(q, k, v, grad, index, cu_seqlens=None):
    """Compute block selection with blocks of 64 tokens in float64: output, LSE and gradients."""
    leaves = [x.detach().double().requires_grad_() for x in (q, k, v)]
    out, lse = naive_blocks(*leaves, index, 64, q.shape[3] ** -0.5, cu_seqlens)
    found = torch.autograd.grad(out, leaves, grad.double())
    return out.detach().contiguous(), lse.contiguous(), *found


def results(of):
    return of if isinstance(of, tuple) else (of,)


def captured(call):
    """Return a CUDA graph of a call, and the call's results. Kernels are compiled before."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = results(call())
    return graph, found


def same(got, want):
    return all(map(torch.equal, got, want))


def check(name, got, want, dtype):
    """Assert that results equal the formula and have the right dtypes."""
    assert len(got) == len(want)
    for i, (a, w) in enumerate(zip(got, want, strict=True)):
        assert a.shape == w.shape
        if not a.is_floating_point():
            assert torch.equal(a.long(), w.long())
            continue
        scores = i > 0 or name == "decode_scores"
        assert a.dtype in (dtype, torch.float32) if scores else a.dtype == dtype
        if scores and a.dtype == torch.float32:
            torch.testing.assert_close(a.double(), w.double(), atol=2e-4, rtol=1e-4)
            continue
        # A layer also rounds its projections and its output.
        near = TOLERANCE[dtype] * (4 if name.startswith("NSAttention") else 1)
        # Sums of branches are large, and so are their rounding errors.
        relative = near if name.startswith(("NSAttention", "nsa_attention")) else 1e-3
        torch.testing.assert_close(a.double(), w.double(), atol=near, rtol=relative)


def gradients(of, leaves, again=False):
    """Return the gradients of a weighted sum of the results. Every call has the same weights.

    If ``again``, return the gradients of the sum of the squares of these gradients.
    """
    loss = 0.0
    for x in of:
        if x.requires_grad:
            weights = torch.arange(x.numel(), device=x.device).view(x.shape).double().cos()
            loss = loss + (x.double().masked_fill(x.isinf(), 0.0) * weights).sum()
    if isinstance(loss, float):
        return ()  # no result is differentiable
    first = torch.autograd.grad(loss, leaves, create_graph=again)
    if not again:
        return first
    return torch.autograd.grad(sum(x.double().square().sum() for x in first), leaves)


def check_gradients(got, want, dtype):
    for a, w in zip(got, want, strict=True):
        assert a.dtype == dtype and a.shape == w.shape
        error, norm = float((a.double() - w).norm()), float(w.norm())
        assert error <= TOLERANCE[dtype] * max(norm, 1.0), (error, norm)


def agree(name, case, dtype=torch.float32):
    """Assert that a call gives what its formula gives, and the same gradients, if it has any."""
    given, exact = dict(case.tensors), doubled(case.tensors)
    wanted = name not in (*conformance.NO_BACKWARD, "nsa_attention with fewer queries")
    for some in (given, exact) if wanted else ():
        some |= {key: some[key].detach().requires_grad_() for key in case.leaves}
    got, want = results(case.call(**given)), results(case.formula(**exact))
    check(name, got, want, dtype)
    if wanted:
        pairs = ((got, given), (want, exact))
        found = [gradients(of, [some[key] for key in case.leaves]) for of, some in pairs]
        check_gradients(*found, dtype)
