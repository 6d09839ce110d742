"""Make probes: small untimed calls that every kernel must get right.

No tile size divides their lengths. Besides sizes, a probe changes at most one thing about a case's
inputs: the scale, the layout, the size of the logits or of the values, or the distribution.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pydantic import ValidationError

from nsabench.model.case import Case
from nsabench.ops._op import Inputs, Op, Probe

if TYPE_CHECKING:
    from torch import Tensor

# With these sizes an op that chooses blocks by scores chooses all blocks, whatever the rounding.
SMALL = {"N": 3, "B": 2, "S": 3, "S_kv": 130, "n_spans": 2, "n_selected": 16}
ABOVE_A_TILE, BELOW_A_TILE = 65, 63
SEVERAL_TILES = 253  # with a loop over tiles, the greatest logit so far changes within a row
AMONG_TILES = {"B": 1, "S_kv": SEVERAL_TILES, "window": SEVERAL_TILES}
OTHER_SCALE = 3.0  # multiple of the default scale
# The probe of large logits adds about this number to each, which does not change the softmax.
# exp(110) overflows float32. `find_probe_limit` allows for the coarser rounding of such logits.
COMMON_LOGIT = 110.0
ALIGNMENT = 16  # bytes
OUTLIER, APART = 1000.0, 61  # one value of v in 61 is multiplied by 1000
STRIDED = "strided inputs"
# The probe and its length, by distribution. In `repeated`, queries need two blocks of 64 keys: to
# count a query's only block twice changes no softmax.
UNUSUAL = {"empty_rows": ("an empty selection", BELOW_A_TILE)}
UNUSUAL["repeated"] = "blocks given twice", 130
UNUSUAL["overlapping"] = "ranges that overlap", BELOW_A_TILE
PADDING = 8  # elements after each row of a strided tensor


def make_attention_probes(op: Op, case: Case, usual: str) -> dict[str, Probe]:
    wanted = {
        "65 keys": (ABOVE_A_TILE, usual, _keep),
        "63 keys": (BELOW_A_TILE, usual, _keep),
        "253 keys": (SEVERAL_TILES, usual, _keep),
        "another scale": (ABOVE_A_TILE, usual, _rescale),
        "large logits": (BELOW_A_TILE, usual, _enlarge_logits),
        "outliers in v": (ABOVE_A_TILE, usual, _add_outliers),
        STRIDED: (BELOW_A_TILE, usual, _spread),
    }
    for distribution, (name, length) in UNUSUAL.items():
        if distribution in op.distributions:
            wanted[name] = length, distribution, _keep
    # This probe is last, since an unaligned load breaks the CUDA context. Its inputs are aligned
    # to 16 bytes: on an H200, torch's attention with cuDNN breaks the context with fewer.
    wanted[f"inputs aligned to {ALIGNMENT} bytes"] = ABOVE_A_TILE, usual, _misalign
    small = {name: size for name, size in SMALL.items() if name in case.shape}
    if usual == "packed":  # `selection_blocks` packs sequences only if B is 1
        small.pop("B", None)
    probes = {}
    for name, (length, distribution, change) in wanted.items():
        sizes = {**case.shape, **small, op.length_axis: length}
        if length == SEVERAL_TILES:
            sizes |= {name: size for name, size in AMONG_TILES.items() if name in sizes}
        try:
            shape = op.shape_model.model_validate(sizes).model_dump()
        except ValidationError:  # such as a compressed key of more tokens than there are
            continue
        update = {"shape": shape, "distribution": distribution}
        probes[name] = Probe(case.model_copy(update=update), change)
    return probes


def _keep(inputs: Inputs) -> Inputs:
    return inputs


def _rescale(inputs: Inputs) -> Inputs:
    return inputs.replaced(sm_scale=OTHER_SCALE * inputs.options["sm_scale"])


def _enlarge_logits(inputs: Inputs) -> Inputs:
    q, k = (inputs.tensors[name].clone() for name in ("q", "k"))
    q[..., 0] = k[..., 0] = (COMMON_LOGIT / inputs.options["sm_scale"]) ** 0.5
    return inputs.replaced({"q": q, "k": k})


def _add_outliers(inputs: Inputs) -> Inputs:
    v = inputs.tensors["v"].clone()
    v.view(-1)[::APART] *= OUTLIER
    return inputs.replaced({"v": v})


def _spread(inputs: Inputs) -> Inputs:

    def spread(x: Tensor) -> Tensor:
        wide = x.new_full((*x.shape[:-1], x.shape[-1] + PADDING), float("nan"))
        wide[..., : x.shape[-1]] = x
        return wide[..., : x.shape[-1]]

    return _change_floats(inputs, spread)


def _misalign(inputs: Inputs) -> Inputs:
    def move(x: Tensor) -> Tensor:
        before = ALIGNMENT // x.element_size()
        return x.new_empty(before + x.numel())[before:].view(x.shape).copy_(x)

    return _change_floats(inputs, move)


def _change_floats(inputs: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
    tensors = inputs.tensors.items()
    return inputs.replaced({name: change(x) for name, x in tensors if x.is_floating_point()})
