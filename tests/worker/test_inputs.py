"""Sets of inputs: what is exchanged, how many there are, and how little memory it takes."""

from random import Random

import pytest
import torch

from nsabench.delivery import draw
from nsabench.model.case import Timing
from nsabench.worker import inputs
from nsabench.worker.inputs import InputSets
from tests.checking import a_case, desk_of, sets_of


def case(rotate=3):
    shape = {"N": 6, "H": 2, "D": 32, "Dv": 32, "L": 40}
    return a_case("selection_rows", shape, timing=Timing(rotate=rotate))


@pytest.mark.parametrize("chunk", [64, 1 << 28])
def test_values_move_and_addresses_stay(monkeypatch, chunk):
    sets = sets_of(case())
    drawn = [draw(case(), seed, "cpu")[0] for seed in desk_of(sets).seeds]
    addresses = [t.data_ptr() for s in sets.sets for t in s.tensors.values()]
    monkeypatch.setattr(inputs, "CHUNK_BYTES", chunk)
    for _ in range(5):
        sets.swap(0, Random())
    assert [t.data_ptr() for s in sets.sets for t in s.tensors.values()] == addresses
    assert sorted(sets.ids) == [0, 1, 2]
    for held, id_ in zip(sets.sets, sets.ids, strict=True):
        for name, tensor in held.tensors.items():
            assert torch.equal(tensor, drawn[id_].tensors[name])


@pytest.mark.parametrize("kind", ["as it lies", "transposed", "begins between words"])
def test_a_change_is_seen_however_a_tensor_lies(monkeypatch, kind):
    """Each sum reads the tensor itself, never an earlier copy of it."""
    drawn = inputs.draw

    def laid(tensor):
        if kind == "transposed":
            return tensor.mT.contiguous().mT
        if kind == "begins between words":
            narrow = torch.zeros(tensor.numel() + 1, dtype=tensor.dtype)[1:].view(tensor.shape)
            return narrow.copy_(tensor)
        return tensor

    def draw_laid(*given):
        found, grad_out = drawn(*given)
        found.tensors["v"] = laid(found.tensors["v"])
        return found, grad_out

    of = case() if kind == "as it lies" else case(rotate=1)
    sets = sets_of(of)
    monkeypatch.setattr(inputs, "draw", draw_laid)
    sets = InputSets(of, desk_of(sets).seeds, sets.form, "cpu")
    assert sets.find_change() == ""  # a copy, if one is kept, is made here
    sets.sets[1].tensors["v"][3, 1, 2] += 1
    assert sets.find_change() == "its input v"
    assert sets.repair() and sets.find_change() == ""
    sets.sets[0].tensors["k"].data = torch.zeros_like(sets.sets[0].tensors["k"])
    assert sets.find_change() == "its input k"  # and not what its memory was before
