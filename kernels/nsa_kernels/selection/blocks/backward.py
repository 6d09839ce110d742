"""Block-major backward: a program keeps dK and dV of a block, and stores a partial dQ per query.

The probabilities are recomputed from the LSE. A work item is some queries that chose one block. Its
program adds up dK and dV of the block over these queries. The first item of a block adds its sums
to the total. All further items store their sums in a workspace, and ``spill_kernel`` then adds them
to the total in order. Nothing is added by atomics, so two runs agree bit for bit.
"""

from __future__ import annotations

from typing import Any

import torch

from ...launch.descriptors import describe_heads
from ...launch.device import on_its_device, runs_gluon
from ...launch.gated import Gated
from ...launch.shares import clear
from ...launch.sizes import LOG2_E, cdiv, head_dims, next_power_of_2, strides
from .config import BlockConfig, beyond_int32, hopper_backward_fits
from .kernels.backward import (
    backward_kernel,
    delta_kernel,
    dkv_kernel,
    dq_kernel,
    spill_kernel,
)
from .plan import BlockPlan


@on_its_device
def block_major_backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    plan: BlockPlan,
    sm_scale: float,
    heads: int,
    config: BlockConfig,
    gated: Gated | None = None,
    onto: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return dq [N, HQ, D], dk [N, H, D] and dv [N, H, Dv] in q's dtype.

    Args:
        out, lse: of the forward, [N, HQ, Dv] and [N, HQ], contiguous; do: [N, HQ, Dv].
        heads: how many KV heads a launch takes.
        gated: gate, rest [N, HQ]. Then ``do`` is the gated sum's gradient; ``out`` is not read.
        onto: contiguous gradients of k and v, to which dk and dv are added, and which are returned.
    """
    n, hq, d = q.shape
    h, dv = v.shape[1:]
    g, s = hq // h, plan.places.shape[2]
    dims = head_dims(d, dv)
    before = None if gated is None else gated.dq
    if gated is None:
        delta = torch.empty((n, hq), dtype=torch.float32, device=q.device)
        delta_kernel[(cdiv(n * hq, 32),)](
            out,
            do,
            delta,
            n * hq,
            hq,
            *strides(do),
            DV=dv,
            BLOCK_DV=dims["BLOCK_DV"],
            ROWS=32,
        )
    else:
        delta = gated.rest
    queries = config.queries
    items = plan.items(queries)
    segment = plan.entries.shape[2]
    # The sums of dv begin at a multiple of 256 bytes.
    edge = cdiv(n * heads * d, 64) * 64
    sums = torch.empty((edge + n * heads * dv,), dtype=torch.float32, device=q.device)
    spill_slots = segment // queries + 1
    spill = torch.empty(
        (heads * spill_slots, plan.block_size, d + dv), dtype=torch.float32, device=q.device
    )
    part = torch.empty((heads * segment * g * d,), dtype=q.dtype, device=q.device)
    dk, dv_out = onto or (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (k, v))
    dq = torch.empty(q.shape, dtype=q.dtype, device=q.device) if before is None else before
    width = min(64, next_power_of_2(d + dv))
    merge_rows = max(4, min(32, 512 // dims["BLOCK_D"]))
    main, of_queries, of_output, constants = _main(q, k, v, lse, do, plan.block_size, config, dims)
    for first_head in range(0, h, heads):
        here = min(heads, h - first_head)
        clear(sums)
        dk_here, dv_here = sums[: n * here * d], sums[edge : edge + n * here * dv]
        for c in range(plan.chunks):
            first = c * plan.chunk
            last = min(first + plan.chunk, n)
            lists = (plan.first[c], plan.count[c], plan.edges)
            main[(items.shape[2], here)](
                *(of_queries, k, v, of_output),
                *(lse, delta, delta if gated is None else gated.gate),
                *(part, dk_here, dv_here, spill),
                *(plan.entries[c], items[c], *lists),
                *strides(q, k, v, do),
                *(h, plan.n_bins, segment, spill_slots, first, first_head),
                *(sm_scale * LOG2_E, sm_scale),
                QUERIES=queries,
                GATED=gated is not None,
                **constants,
            )
            spill_kernel[(plan.n_bins, here, cdiv(d + dv, width))](
                *(spill, dk_here, dv_here, *lists),
                *(plan.n_bins, spill_slots, first_head),
                D=d,
                DV=dv,
                WIDTH=width,
                BLOCK_SIZE=plan.block_size,
                QUERIES=queries,
            )
            dq_kernel[(cdiv((last - first) * g, merge_rows), here)](
                *(part, plan.places, dq),
                *(h, segment, first, last, first_head, sm_scale),
                S=s,
                G=g,
                D=d,
                BLOCK_D=dims["BLOCK_D"],
                ROWS=merge_rows,
                ADDED=before is not None,
                num_warps=1,
            )
        rows = max(1, 2048 // max(dims["BLOCK_D"], dims["BLOCK_DV"]))
        dkv_kernel[(cdiv(n * here, rows), 2)](
            *(dk_here, dv_here, dk, dv_out),
            *(n * here, h, here, first_head),
            **dims,
            ROWS=rows,
            ADDED=onto is not None,
            num_warps=4,
        )
    return dq, dk, dv_out


def _main(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    block_size: int,
    config: BlockConfig,
    dims: dict[str, int],
) -> tuple[Any, Any, Any, dict[str, Any]]:
    """Return the kernel of the main launch, its arguments for q and do, and its constants.

    ``dims``: the head dims for the kernel in Triton. The kernel in Gluon takes the same arguments,
    except that q and do may be TMA descriptors.
    """
    g = q.shape[1] // k.shape[1]
    if runs_gluon(q.device) and hopper_backward_fits(q, k, v, lse, do, block_size):
        # Imported here, since some versions of Triton cannot import it.
        from .kernels import hopper_backward as hopper

        constants = hopper.constants_of(g)
        if hopper.takes_boxes(g):
            return (
                hopper.hopper_backward_kernel,
                describe_heads(q, g),
                describe_heads(do, g),
                constants,
            )
        return hopper.hopper_backward_kernel, q, do, constants
    constants = {
        "G": g,
        "PAD_G": next_power_of_2(g),
        **dims,
        "BLOCK_SIZE": block_size,
        "ROWS": config.rows,
        "WIDE": beyond_int32(q, do, lse),
        "num_warps": config.warps,
        "num_stages": 1,
        "maxnreg": config.registers,
    }
    return backward_kernel, q, do, constants
