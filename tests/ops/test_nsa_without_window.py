"""The whole without overlap and window: its oracle and gradients against the definition, its work,
and how far scores of one compressed key are told apart."""

from __future__ import annotations

import pytest
import torch

from nsabench import ops
from nsabench.model.vocabulary import DType
from nsabench.ops import Inputs, Shape, _nsa, rows_left_out
from nsabench.ops.nsa_without_window import as_whole

OP = ops.get("nsa_without_window")
SIZES = {"B": 2, "T": 44, "HQ": 4, "H": 2, "D": 16, "Dv": 8, "block_size": 8, "n_selected": 4}


def drawn(dtype: DType = DType.FLOAT32, distribution: str = "dense", **sizes: int) -> Inputs:
    return OP.draw(shape_of(**sizes), dtype, distribution, 3, "cpu")


def shape_of(**sizes: int) -> Shape:
    return OP.shape_model.model_validate({**SIZES, **sizes})


def by_hand(inputs: Inputs, x: dict[str, torch.Tensor], b: int, t: int, head: int) -> torch.Tensor:
    """A query, block by block: means of the blocks that ended, and the keys of those chosen."""
    size, count = inputs.options["block_size"], inputs.options["n_selected"]
    group = x["q"].shape[2] // x["k"].shape[2]
    kv = head // group
    cu = inputs.tensors.get("cu_seqlens", torch.tensor([0, x["q"].shape[1]])).tolist()
    start = max(e for e in cu[:-1] if e <= t)
    end = min(e for e in cu[1:] if e > t)
    k, v, at = x["k"][b, start:end, kv], x["v"][b, start:end, kv], t - start
    q, scale = x["q"][b, t], inputs.options["sm_scale"]
    ended, own = (at + 1) // size, at // size
    out = x["gates"][b, t, head, 0] * torch.zeros_like(v[0])
    score = dict.fromkeys(range(own + 1), 0.0)
    if ended:
        keys, values = (
            torch.stack([y[i * size :][:size].mean(0) for i in range(ended)]) for y in (k, v)
        )
        out = x["gates"][b, t, head, 0] * (torch.softmax(keys @ q[head] * scale, 0) @ values)
        for other in range(kv * group, (kv + 1) * group):
            for i, weight in enumerate(torch.softmax(keys @ q[other] * scale, 0).tolist()):
                score[i] += weight
    forced = {0, own, max(own - 1, 0)}
    free = sorted((i for i in score if i not in forced), key=lambda i: (-score[i], i))
    chosen = sorted([*forced, *free[: max(count - len(forced), 0)]])
    near = [i for i in range(at + 1) if i // size in chosen]
    weights = torch.softmax(k[near] @ q[head] * scale, 0)
    return out + x["gates"][b, t, head, 1] * (weights @ v[near])


@pytest.mark.parametrize("distribution", OP.distributions)
def test_the_oracle_and_its_gradients_are_those_of_the_definition(distribution: str) -> None:
    inputs = drawn(distribution=distribution, B=2 if distribution == "packed" else 1)
    x = {n: t.double().requires_grad_() for n, t in inputs.tensors.items() if n != "cu_seqlens"}
    oracle, grad_out = OP.oracle(inputs), OP.draw_grad(inputs, 5)
    held = rows_left_out.compared(oracle)
    assert held.float().mean() > 0.9
    total = 0.0
    for b, t, head in held.nonzero().tolist():
        wanted = by_hand(inputs, x, b, t, head)
        torch.testing.assert_close(oracle[b, t, head], wanted.detach(), atol=1e-12, rtol=1e-12)
        total = total + (wanted * grad_out[b, t, head].double()).sum()
    total.backward()  # type: ignore[attr-defined]
    for name, found in OP.gradients(inputs, grad_out).items():
        held = rows_left_out.compared(found)
        atol = 1e-12 if name in ("q", "gates") else 1e-6  # what is left out is quiet, not silent
        torch.testing.assert_close(found[held], x[name].grad[held], atol=atol, rtol=1e-9)


def test_it_has_two_gates_and_the_work_of_two_branches() -> None:
    inputs = drawn()
    assert inputs.tensors["gates"].shape == (2, 44, 4, 2)
    assert OP.gradients(inputs, OP.draw_grad(inputs, 1))["gates"].shape == (2, 44, 4, 2)
    work = OP.work(shape_of(), DType.BFLOAT16, "dense", 0)
    elements = 2 * 44 * (4 * (16 + 8 + 2) + 2 * (16 + 8))
    ended = sum((t + 1) // 8 for t in range(44))
    seen = sum((min(t // 8 + 1, 4) - 1) * 8 + t % 8 + 1 for t in range(44))
    assert (work.bytes_min, work.flops) == (2 * elements, 2 * 2 * 4 * (ended + seen) * (16 + 8))
    assert OP.differentiable_elements(shape_of()) == sum(
        inputs.tensors[name].numel() for name in OP.differentiable
    )


@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT16])
def test_scores_of_one_rounded_key_are_off_by_less_than_tells_them_apart(dtype: DType) -> None:
    """As kernels compute them: keys rounded to the format, and queries once they are scaled."""
    inputs = drawn(dtype, B=1, T=2048, HQ=16, H=1, D=128, Dv=128, block_size=64, n_selected=16)
    q, k, format_ = (
        inputs.tensors["q"][0, ::4],
        inputs.tensors["k"][0, :, 0],
        inputs.tensors["q"].dtype,
    )
    keys, scale = _nsa.means(k, 64, 64), inputs.options["sm_scale"]
    ended = torch.arange(keys.shape[0]) * 64 + 64 <= torch.arange(0, 2048, 4).unsqueeze(1) + 1

    def scores(q: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        logits = (q.double() @ keys.mT).masked_fill(~ended.unsqueeze(1), float("-inf"))
        return logits.softmax(-1).nan_to_num(0.0).sum(1)

    right = scores(q.double() * scale, keys)
    rounded = scores((q.float() * scale).to(format_), keys.to(format_).double())
    off = ((rounded - right).abs() / right)[right > _nsa.LEAST_SCORE].max()
    assert off < _nsa.resolved(as_whole(inputs))


def test_a_size_that_the_whole_refuses_is_refused() -> None:
    with pytest.raises(ValueError, match="does not hold the first and 2 local blocks"):
        shape_of(n_selected=2)
