"""A small language model on real bytes learns the same with the kernels as with plain PyTorch.

One model has two layers of block selection (arXiv 2502.11089, section 3.3.2). A query sees the
first block, its own block and the past blocks whose mean keys score best. The second model has two
layers of full NSA attention.

On a GPU the first model trains for 200 steps and the second for 300. Triton's interpreter takes
seconds a step, so there they train for a few. NSA_KERNELS_TRAINING_STEPS sets another number.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import nsa_kernels
import pytest
import torch
from cases import DEVICE, exact_nsa
from nsa_kernels.selection.blocks.naive import naive_blocks
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

VARIABLE = "NSA_KERNELS_TRAINING_STEPS"
STEPS = int(os.environ.get(VARIABLE, 200 if DEVICE == "cuda" else 5))
STEPS_OF_WHOLE = int(os.environ.get(VARIABLE, 300 if DEVICE == "cuda" else 3))
TEXT = (Path(__file__).parents[2] / "LICENSE").read_bytes()


@dataclass(frozen=True)
class Sizes:
    """Sizes of the model and of a step. Triton's interpreter takes milliseconds a program."""

    batch: int
    tokens: int
    heads: int
    kv_heads: int
    dim: int
    block: int
    chosen: int
    dtype: torch.dtype


SIZES = (
    Sizes(4, 512, 16, 2, 32, 64, 4, torch.bfloat16)
    if DEVICE == "cuda"
    else Sizes(1, 32, 4, 1, 16, 16, 2, torch.float32)
)
# Relative difference of the mean loss of the last steps: rounding, and what training makes of it.
AGREE = 0.03 if DEVICE == "cuda" else 0.003

Attention = Callable[[Tensor, Tensor, Tensor, Tensor, int], Tensor]


def reference(q: Tensor, k: Tensor, v: Tensor, indices: Tensor, block: int) -> Tensor:
    """Attend by a mask over all keys."""
    q, k, v = (x.float() for x in (q, k, v))
    return naive_blocks(q, k, v, indices, block, q.shape[3] ** -0.5)[0]


def by_ranges(q: Tensor, k: Tensor, v: Tensor, indices: Tensor, block: int) -> Tensor:
    """Attend to the blocks through ``selection_attention``: every block is a span up to the query
    itself."""
    b, t, hq, d = q.shape
    h = k.shape[2]
    start = indices * block
    past = torch.arange(1, t + 1, device=q.device, dtype=indices.dtype).view(1, t, 1, 1)
    ranges = torch.stack([start, torch.minimum(start + block, past)], -1)
    out = nsa_kernels.selection_attention(
        q.view(b, t, h, hq // h, d), k.transpose(1, 2), v.transpose(1, 2), ranges
    )
    return out.view(b, t, hq, -1)


def by_blocks(q: Tensor, k: Tensor, v: Tensor, indices: Tensor, block: int) -> Tensor:
    out: Tensor = nsa_kernels.block_selection_attention(q, k, v, indices, block_size=block)
    return out


def sizes_of_whole(block: int) -> dict[str, int]:
    return {
        "block": block // 2,
        "stride": block // 4,
        "block_size": block,
        "n_selected": max(3, SIZES.chosen),
        "window": 2 * block - 5,
    }


def gates_of(q: Tensor) -> Tensor:
    """Return gates [B,T,HQ,3] computed from columns of the query, so that gradients also flow
    through the gates."""
    return q[..., :3].float().sigmoid()


def by_whole(q: Tensor, k: Tensor, v: Tensor, _: Tensor, block: int) -> Tensor:
    out: Tensor = nsa_kernels.nsa_attention(q, k, v, gates_of(q), **sizes_of_whole(block))
    return out


def by_formulas(q: Tensor, k: Tensor, v: Tensor, _: Tensor, block: int) -> Tensor:
    return exact_nsa(q, k, v, gates_of(q), **sizes_of_whole(block))


class Layer(nn.Module):
    def __init__(self, attend: Attention) -> None:
        super().__init__()
        self.attend = attend
        width = SIZES.heads * SIZES.dim
        shared = SIZES.kv_heads * SIZES.dim
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv = nn.Linear(width, width + 2 * shared, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.feed = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        b, t, width = x.shape
        shared = SIZES.kv_heads * SIZES.dim
        q, k, v = (
            part.reshape(b, t, -1, SIZES.dim).to(SIZES.dtype)
            for part in self.qkv(self.norms[0](x)).split([width, shared, shared], -1)
        )
        attended = self.attend(q, k, v, choose(q, k), SIZES.block).to(x.dtype)
        x = x + self.out(attended.reshape(b, t, width))
        return x + self.feed(self.norms[1](x))


@torch.no_grad()
def choose(q: Tensor, k: Tensor) -> Tensor:
    """Return block indices [B,T,H,S], int32: the own block, the first block, and the blocks whose
    mean keys score best. -1 marks an empty slot."""
    b, t, h, d = k.shape
    blocks = t // SIZES.block
    means = k.float().view(b, blocks, SIZES.block, h, d).mean(2)
    queries = q.float().view(b, t, h, -1, d).sum(3)
    scores = torch.einsum("bthd,bnhd->bthn", queries, means)
    own = (torch.arange(t, device=q.device) // SIZES.block).view(t, 1, 1)
    number = torch.arange(blocks, device=q.device)
    scores = scores.masked_fill((number == own) | (number == 0), math.inf)
    scores = scores.masked_fill(number > own, -math.inf)
    best = scores.topk(min(SIZES.chosen, blocks), -1)
    return torch.where(best.values == -math.inf, -1, best.indices).to(torch.int32)


def train(attend: Attention, steps: int) -> list[float]:
    """The loss of every step. All that is drawn is drawn alike whatever ``attend`` is."""
    torch.manual_seed(7)
    width = SIZES.heads * SIZES.dim
    model = nn.Sequential(
        nn.Embedding(256, width), Layer(attend), Layer(attend), nn.Linear(width, 256)
    ).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    data = torch.tensor(list(TEXT), device=DEVICE)
    losses = []
    for step in range(steps):
        digest = hashlib.sha256(str(step).encode()).digest()
        starts = [
            int.from_bytes(digest[4 * i : 4 * i + 4], "little") % (len(TEXT) - SIZES.tokens - 1)
            for i in range(SIZES.batch)
        ]
        batch = torch.stack([data[s : s + SIZES.tokens + 1] for s in starts])
        loss = cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.fixture(scope="module")
def right() -> list[float]:
    return train(reference, STEPS)


@pytest.mark.parametrize("attend", [by_ranges, by_blocks])
def test_the_losses_agree(attend, right) -> None:
    nsa_kernels.reset_routing_report()
    losses = train(attend, STEPS)
    assert nsa_kernels.routing_report()["fallback"] == 0
    check(losses, right)


def test_the_losses_of_the_whole_agree() -> None:
    check(train(by_whole, STEPS_OF_WHOLE), train(by_formulas, STEPS_OF_WHOLE))


def check(losses: list[float], right: list[float]) -> None:
    """The reference learns, and the losses end where its do."""
    steps = len(right)
    last = max(1, steps // 10)
    mean, expected = sum(losses[-last:]) / last, sum(right[-last:]) / last
    assert expected < (0.7 if steps >= 100 else 0.95) * right[0], "the reference does not learn"
    assert losses[0] == pytest.approx(right[0], rel=1e-3)
    assert mean == pytest.approx(expected, rel=AGREE)
