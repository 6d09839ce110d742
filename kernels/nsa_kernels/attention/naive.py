"""What the layer must compute, said in plain PyTorch, one query at a time.

``naive_nsa`` follows arXiv 2502.11089 equation by equation; ``dense`` is causal attention, what
NSA is when its selection covers everything and is the only branch that counts.
"""

from __future__ import annotations

import torch


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """Heads of a group q [h, D] over k [L, D], v [L, Dv]; L = 0 gives 0."""
    if k.shape[0] == 0:
        return q.new_zeros(q.shape[0], v.shape[1])
    return torch.softmax(q @ k.T * scale, -1) @ v


def select(p: torch.Tensor, t: int, block: int, stride: int, size: int, count: int) -> list[int]:
    """The blocks that query t selects, given its group's summed weights p on compressed keys.

    Equation 9 (for compressed keys that overlap blocks), the first block and the two local ones
    always in, then equation 11: the highest scores, of equal ones the lowest index.
    """
    own = t // size
    scores = [0.0] * (own + 1)
    for key, weight in enumerate(p.tolist()):
        for place in range(block // stride):
            j = (key + place) * stride // size
            if j <= own:
                scores[j] += weight
    for j in {0, max(own - 1, 0), own}:
        scores[j] = float("inf")
    return sorted(range(own + 1), key=lambda j: (-scores[j], j))[:count]


def naive_nsa(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cmp: torch.Tensor,
    v_cmp: torch.Tensor,
    gates: torch.Tensor,
    *,
    block: int,
    stride: int,
    block_size: int,
    n_selected: int,
    window: int,
) -> torch.Tensor:
    """q [B,T,HQ,D], k, v [B,T,H,...], k_cmp, v_cmp [B,Nc,H,...], gates [B,T,HQ,3].

    Returns [B,T,HQ,Dv].
    """
    batches, tokens, hq, d = q.shape
    heads = k.shape[2]
    group, scale = hq // heads, d**-0.5
    rows = []
    for b in range(batches):
        for t in range(tokens):
            for h in range(heads):
                mine = slice(h * group, (h + 1) * group)
                qt, kh, vh = q[b, t, mine], k[b, : t + 1, h], v[b, : t + 1, h]
                seen = max(0, (t + 1 - block) // stride + 1)
                kc, vc = k_cmp[b, :seen, h], v_cmp[b, :seen, h]
                compressed = attend(qt, kc, vc, scale)
                # Equations 8 and 10: the weights, shared by the heads of a group.
                p = torch.softmax(qt @ kc.T * scale, -1).sum(0) if seen else qt.new_zeros(0)
                blocks = select(p.detach(), t, block, stride, block_size, n_selected)
                at = [i for j in blocks for i in range(j * block_size, (j + 1) * block_size)]
                at = [i for i in at if i <= t]
                selected = attend(qt, kh[at], vh[at], scale)
                near = attend(qt, kh[-window:], vh[-window:], scale)
                gate = gates[b, t, mine].unsqueeze(-1)
                rows.append(gate[:, 0] * compressed + gate[:, 1] * selected + gate[:, 2] * near)
    return torch.stack(rows).view(batches, tokens, hq, v.shape[3])


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention q [B,T,HQ,D], k, v [B,T,H,...] -> [B,T,HQ,Dv]."""
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scores = torch.einsum("bthd,bshd->bhts", q, k) * q.shape[3] ** -0.5
    future = torch.ones(scores.shape[2:], dtype=torch.bool, device=q.device).triu(1)
    return torch.einsum(
        "bhts,bshd->bthd", torch.softmax(scores.masked_fill(future, -torch.inf), -1), v
    )
