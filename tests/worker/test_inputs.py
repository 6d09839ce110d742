"""Sets of inputs: what is exchanged, and that sums of their bits see each change."""

from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nsabench.delivery import draw
from nsabench.model.case import Timing
from nsabench.worker import inputs
from nsabench.worker.inputs import FOLD, Cut, InputSets, Sums
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
    assert sets.find_change() == "its input k"  # its new memory is read, and not the old one


@given(data=st.binary(min_size=4, max_size=70_000), start=st.integers(0, 3), at=st.integers(0))
def test_sums_see_each_bit_wherever_the_tensor_begins(data, start, at):
    given_ = torch.frombuffer(bytearray(data[: len(data) // 2 * 2]), dtype=torch.int16)
    begun = torch.cat([torch.zeros(start, dtype=torch.int16), given_])[start:]
    sums = Sums([given_]).now()
    assert torch.equal(Sums([begun]).now(), sums)
    begun[at % len(begun)] ^= 1
    assert not torch.equal(Sums([begun]).now(), sums)


def several():
    """Return tensors of the kinds that an op has. Their lengths differ, and some are below
    ``FOLD``. One is transposed in memory, and one begins between two words."""
    made = torch.Generator().manual_seed(0)
    tensors = [
        torch.randn(4 * FOLD * rows + over, generator=made).to(torch.bfloat16)
        for rows, over in ((3, 0), (2, 7), (0, 9), (300, 1))
    ]
    tensors += [torch.randn(FOLD, 5, generator=made, dtype=torch.float64) for _ in range(2)]
    tensors.append(torch.randn(FOLD, 64, generator=made).mT)
    tensors.append(torch.randn(2 * FOLD + 1, generator=made)[1:])
    return tensors


@pytest.fixture(params=["as on a GPU", "each by itself"])
def gathered(request, monkeypatch):
    most = 8 * FOLD * 100 if request.param == "as on a GPU" else 0
    monkeypatch.setattr(Cut, "is_gathered", property(lambda cut: 0 < cut.folded.nbytes <= most))


@pytest.mark.usefixtures("gathered")
@pytest.mark.parametrize("which", range(8))
def test_sums_of_many_tensors_see_a_change_in_any(which):
    tensors = several()
    sums = Sums(tensors)
    right = sums.now()
    for at in (0, tensors[which].numel() // 2, tensors[which].numel() - 1):
        place = np.unravel_index(at, tensors[which].shape)
        before = tensors[which][place].clone()
        tensors[which][place] += 1
        assert not torch.equal(sums.now(), right)
        tensors[which][place] = before
        assert torch.equal(sums.now(), right)
    # Two values are swapped: within a row of ``FOLD`` words, and within a column of such rows.
    flat = tensors[which].view(-1) if tensors[which].is_contiguous() else None
    in_a_word = 8 // tensors[which].element_size()
    for other in (in_a_word, FOLD * in_a_word) if flat is not None else ():
        if other < flat.numel():
            flat[[0, other]] = flat[[other, 0]]
            assert not torch.equal(sums.now(), right)
            flat[[0, other]] = flat[[other, 0]]
    assert torch.equal(sums.now(), right)


@pytest.mark.parametrize("kind", ["every other", "one for all"])
def test_sums_are_of_values_that_lie_apart(kind):
    """A kernel may return a view, of any strides."""
    values = torch.arange(8 * FOLD, dtype=torch.float32)
    view = values[::2] if kind == "every other" else values[:1].expand(4 * FOLD)
    assert torch.equal(Sums([view]).now(), Sums([view.clone()]).now())
