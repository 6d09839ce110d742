"""Tensors that a kernel copies in boxes."""

from __future__ import annotations

import pytest
import torch
from nsa_kernels.launch.descriptors import describe_heads, describe_tokens, heads_in_rows

pytest.importorskip("triton.experimental.gluon.nvidia.hopper")


@pytest.mark.parametrize(("begin", "heads"), [(0, 8), (8, 4), (12, 4)])
def test_heads_of_one_projection_are_rows_of_its_memory(begin: int, heads: int) -> None:
    """The last row is the last head of the last token, so no row is past the end of the memory."""
    room = torch.arange(5 * 16 * 64).bfloat16().view(5, 16, 64)
    x = room[:, begin : begin + heads]
    found = describe_heads(x, 4)
    assert heads_in_rows(x) and (found.strides, found.block_shape) == ([64, 1], [4, 64])
    rows = room.view(-1)[begin * 64 :].as_strided(found.shape, found.strides)
    for token in range(5):
        assert torch.equal(rows[token * 16 :][:heads], x[token])
    assert len(rows) == 4 * 16 + heads


def test_heads_that_are_no_rows() -> None:
    room = torch.zeros(5, 16, 192, dtype=torch.bfloat16)
    assert heads_in_rows(room[..., 8:136]) and heads_in_rows(room[:1])
    no_rows = (
        room[..., 4:132],  # which begin at a multiple of 8 bytes
        room[..., ::2],
        room[:, :1].expand(-1, 16, -1),
        room.transpose(0, 1),
        room.view(-1).as_strided((5, 16, 64), (100 * 16, 96, 1)),  # 16 and two thirds a token
    )
    assert not any(heads_in_rows(x) for x in no_rows)


def test_tokens_are_rows_of_their_heads() -> None:
    x = torch.zeros(100, 4, 128, dtype=torch.bfloat16)[:, :2]
    found = describe_tokens(x, 64)
    assert found.base is x and (found.shape, found.strides) == ([100, 256], [512, 1])
    assert found.block_shape == [64, 128] and found.layout.swizzle_byte_width == 128
