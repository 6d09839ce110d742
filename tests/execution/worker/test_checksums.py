"""Sums of tensors' bits: what they see, and that they are exact."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nsabench.execution.worker.checksums import FOLD, checksum


@given(data=st.binary(min_size=4, max_size=70_000), start=st.integers(0, 3), at=st.integers(0))
def test_a_checksum_sees_each_bit_wherever_the_tensor_begins(
    data: bytes, start: int, at: int
) -> None:
    given_ = torch.frombuffer(bytearray(data[: len(data) // 2 * 2]), dtype=torch.int16)
    begun = torch.cat([torch.zeros(start, dtype=torch.int16), given_])[start:]
    sums = checksum({"it": given_})["it"]
    assert torch.equal(checksum({"it": begun})["it"], sums)
    begun[at % len(begun)] ^= 1
    assert not torch.equal(checksum({"it": begun})["it"], sums)


@pytest.mark.parametrize("bits", [torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("words", [0, 1, FOLD - 1, FOLD, 3 * FOLD + 5])
@pytest.mark.parametrize("rest", [0, 1])
def test_sums_of_a_fold_are_those_of_its_words(bits: torch.dtype, words: int, rest: int) -> None:
    """They wrap around where they do not fit."""
    limits = torch.iinfo(bits)
    values = torch.randint(limits.min, limits.max, (words * 64 // limits.bits + rest,), dtype=bits)
    values[: len(values) // 2] = limits.max
    whole = np.frombuffer(values.numpy().tobytes()[: len(values) * limits.bits // 64 * 8], np.int64)
    folded = whole[: whole.size // FOLD * FOLD].reshape(-1, FOLD)
    left = values[whole.size * 64 // limits.bits :].numpy()
    sums = [folded.sum(0), folded.sum(1)] if folded.size else []
    wanted = np.concatenate([*sums, whole[folded.size :], left])
    got = checksum({"it": values})["it"]
    assert got.dtype == torch.int64 and np.array_equal(got.numpy(), wanted)
