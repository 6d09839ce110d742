"""``block_selection_attention``: plans, chunks of a workspace, and the kernel for few tokens."""

import dataclasses

import nsa_kernels
import nsa_kernels.selection.blocks.config as block_config
import pytest
import torch
from cases import DEVICE, HERE, agree, check, doubled, ints, make

NAME = "block_selection_attention"


def called(case, **options):
    return dataclasses.replace(case, call=lambda **x: case.call(**x, **options))


def test_tokens_before_the_first_sequence_see_nothing():
    """For few queries without gradients, a kernel reads the blocks that each query chose."""
    case = make(NAME, t=28, hq=2, h=2, blocks=17)
    case.tensors["cu_seqlens"] = ints(3, 5, 5, 24, 26)
    agree(NAME, case)
    *given, cu = case.tensors.values()
    got = torch.ops.nsa_kernels.block_query_major(*given, cu, 16, 0.25)
    check(NAME, got, case.formula(**doubled(case.tensors)), torch.float32)
    for x in (*got, *case.call(**case.tensors)):
        assert torch.equal(x[0, :3].nan_to_num(neginf=0.0), torch.zeros_like(x[0, :3]))


@pytest.mark.parametrize("dtype", HERE)
def test_a_small_workspace_takes_several_chunks(dtype):
    case = make(NAME, t=200, hq=4, h=2, blocks=4, dtype=dtype)
    agree(NAME, called(case, workspace_bytes=120_000), dtype)


def test_a_workspace_too_small_names_what_is_needed():
    case = make(NAME, t=64, hq=4, h=2, blocks=4)
    with pytest.raises(ValueError, match="at least"):
        agree(NAME, called(case, workspace_bytes=1000))


def test_queries_of_one_block_fill_several_items():
    case = make(NAME, t=200, hq=4, h=2, blocks=4)
    case.tensors["block_indices"][..., 0] = 0
    agree(NAME, case)
    agree(
        "plan_blocks",
        dataclasses.replace(make("plan_blocks", t=200, hq=4, h=2, blocks=4), tensors=case.tensors),
    )


@pytest.mark.parametrize(
    ("size", "strides"),
    [
        (40 << 26, (40 << 26, 1 << 26, 16, 1)),
        (4 << 30, (4 << 30, 16, 1 << 30, 1)),
    ],
    ids=["tokens far apart", "heads far apart"],
)
def test_offsets_beyond_int32(size, strides):
    """Memory is reserved, and little of it is touched."""
    case = make("plan_blocks", t=40, hq=4, blocks=2, dtype=torch.float16)
    q = torch.empty(size, dtype=torch.float16, device=DEVICE)
    q = q.as_strided((1, 40, 4, 16), strides).copy_(case.tensors["q"])
    assert block_config.beyond_int32(q)
    case.tensors["q"] = q
    agree("plan_blocks", case, torch.float16)


def test_the_stride_of_an_axis_of_one_counts_for_nothing():
    case = make(NAME, b=3, t=1, hq=4, h=2)
    longer = {key: torch.cat([x, x], 1)[:, :1] for key, x in case.tensors.items()}
    odd = {
        key: x.as_strided(x.shape, (x.stride(0), 7, *x.stride()[2:]))
        for key, x in case.tensors.items()
    }
    assert all(x.is_contiguous() for x in odd.values())
    for tensors in (longer, odd):
        agree(NAME, dataclasses.replace(case, tensors=tensors))


def test_what_no_query_may_see_changes_nothing():
    case = make(NAME, t=96, hq=4, h=2, blocks=4)
    before, _ = case.call(**case.tensors)
    case.tensors["k"][:, 50:], case.tensors["v"][:, 50:] = 1e4, float("nan")
    after, _ = case.call(**case.tensors)
    assert torch.equal(before[:, :48], after[:, :48])


@pytest.mark.parametrize(
    "change",
    [
        {"block_size": 64},
        {"length": 70},
        {"chosen": 2},
        {"cu_seqlens": ints(0, 30, 96)},
        {"elsewhere": True},
    ],
)
def test_a_plan_of_another_call_is_refused(change):
    """Otherwise queries would attend to other keys than they chose."""
    case = make(NAME, t=96, hq=4, h=2, blocks=3)
    q, k, v, index = case.tensors.values()
    plan = nsa_kernels.plan_blocks(q, k, v, index, block_size=32)
    if "elsewhere" in change:
        plan = dataclasses.replace(plan, places=plan.places.to("meta"))
    tensors = [
        x[:, : change.get("length", 96)] for x in (q, k, v, index[..., : change.get("chosen", 3)])
    ]
    options = {"block_size": change.get("block_size", 32), "cu_seqlens": change.get("cu_seqlens")}
    with pytest.raises(ValueError, match="plan_blocks"):
        nsa_kernels.block_selection_attention(*tensors, **options, plan=plan)


@pytest.mark.skipif(DEVICE == "cuda", reason="the CPU stands for a GPU of 99 KiB")
def test_tiles_that_fit_no_shared_memory_are_refused_before_the_forward():
    case = make(NAME, t=64, d=256, dv=256, dtype=torch.float16, block_size=128)
    plan = nsa_kernels.plan_blocks(**case.tensors, block_size=128)
    for grad, direction in ((False, "forward"), (True, "backward")):
        case.tensors["q"].requires_grad_(grad)
        with pytest.raises(ValueError, match=f"{direction} .*shared memory"):
            case.call(**case.tensors, plan=plan)
    half, device = torch.float16, torch.device("cpu")
    wide = block_config.BlockShape(4096, 16, 4, 4, 192, 128, 64, half, device)
    assert block_config.backward_config(wide).rows == 16
