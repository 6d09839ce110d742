"""Sets of inputs: what is exchanged, how many there are, and how little memory it takes."""

from __future__ import annotations

import weakref
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from nsabench import ops
from nsabench.delivery import Form, draw
from nsabench.execution.worker import inputs
from nsabench.execution.worker.checksums import Cut
from nsabench.execution.worker.inputs import InputSets
from nsabench.model.case import Case, Timing
from nsabench.model.vocabulary import Direction, DType
from tests.checking import desk_of, sets_of


def case(streams: int = 1, rotate: int = 3) -> Case:
    return Case(
        op="selection_rows",
        shape={"N": 6, "H": 2, "D": 32, "Dv": 32, "L": 40},
        dtype=DType.FLOAT16,
        direction=Direction.FORWARD,
        distribution="dense",
        streams=streams,
        timeout_s=60,
        seed=1,
        timing=Timing(rotate=rotate),
    )


@pytest.mark.parametrize("chunk", [64, 1 << 28])
def test_values_move_and_addresses_stay(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
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


def test_there_are_as_many_sets_as_streams() -> None:
    """Calls at once on the same data read it once, and the work of a case counts it each time."""
    assert len(sets_of(case(streams=5))) == 5
    assert len(sets_of(case(rotate=1))) == 2


@pytest.mark.parametrize("direction", [Direction.FORWARD, Direction.BACKWARD])
@pytest.mark.parametrize("gathered", [True, False])
def test_the_host_waits_once_for_the_sums_of_all_sets(
    monkeypatch: pytest.MonkeyPatch, gathered: bool, direction: Direction
) -> None:
    """Each comparison of sums waits for the device. What they should be follows the sets."""
    monkeypatch.setattr(Cut, "is_gathered", property(lambda cut: gathered and len(cut.folded) > 0))
    of = case()
    if direction is Direction.BACKWARD:
        shape = {"B": 1, "T": 70, "HQ": 4, "H": 2, "D": 64, "Dv": 64, "S": 2, "block_size": 16}
        changes = {"op": "selection_blocks", "shape": shape, "direction": direction}
        of = of.model_copy(update=changes | {"distribution": "random"})
    sets = sets_of(of)
    compared: list[bool] = []
    equal = torch.equal
    monkeypatch.setattr(torch, "equal", lambda *two: compared.append(True) or equal(*two))

    def nothing_changed_at_once() -> bool:
        compared.clear()
        return sets.any_changed() == "" and len(compared) == 1

    assert nothing_changed_at_once()
    for _ in range(3):
        sets.swap(0, Random())
        assert nothing_changed_at_once()
    sets.sets[1].tensors["q"][0] += 1
    assert sets.repair() and nothing_changed_at_once()
    assert sets._right_sums is not None
    for spoiled in (sets._right_sums, sets._parts[1].rows, sets._parts[1].others):
        if spoiled.numel():
            spoiled.add_(1)
            sets._right_sums = None if spoiled is not sets._right_sums else spoiled
            assert sets.any_changed() == "" and len(compared) > 1
            assert nothing_changed_at_once()
    sets.sets[2].tensors["k"][0] += 1
    assert sets.any_changed() == "its input k"


@pytest.mark.parametrize("kind", ["as it lies", "transposed", "begins between words"])
def test_a_change_is_seen_however_a_tensor_lies(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """What is summed is the tensor each time, and never a copy that was made of it once."""
    drawn = inputs.draw

    def laid(tensor: torch.Tensor) -> torch.Tensor:
        if kind == "transposed":
            return tensor.mT.contiguous().mT
        if kind == "begins between words":
            narrow = torch.zeros(tensor.numel() + 1, dtype=tensor.dtype)[1:].view(tensor.shape)
            return narrow.copy_(tensor)
        return tensor

    def draw_laid(*given: Any) -> tuple[ops.Inputs, torch.Tensor | None]:
        found, grad_out = drawn(*given)
        found.tensors["v"] = laid(found.tensors["v"])
        return found, grad_out

    of = case() if kind == "as it lies" else case(rotate=1)
    sets = sets_of(of)
    monkeypatch.setattr(inputs, "draw", draw_laid)
    sets = InputSets(of, desk_of(sets).seeds, sets.form, "cpu")
    assert sets.any_changed() == ""  # whoever keeps a copy has it from here
    sets.sets[1].tensors["v"][3, 1, 2] += 1
    assert sets.any_changed() == "its input v"
    assert sets.repair() and sets.any_changed() == ""
    sets.sets[0].tensors["k"].data = torch.zeros_like(sets.sets[0].tensors["k"])
    assert sets.any_changed() == "its input k"  # and not what its memory was before


@pytest.mark.parametrize(
    "rows, calls, blocks",
    [(8, 1, 2), (8, 24, 25), (1 << 22, 24, 3), (1 << 26, 24, 1)],
    ids=["one", "burst", "long", "large"],
)
def test_memory_is_poisoned_for_all_results_that_may_be_kept(
    monkeypatch: pytest.MonkeyPatch, rows: int, calls: int, blocks: int
) -> None:
    """Two in a row had been one and the same block: the first was free again for the second."""
    alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
    most = 0

    def full(shape: list[int], value: float, *, dtype: torch.dtype, device: object) -> torch.Tensor:
        nonlocal most
        block = torch.empty(0, dtype=dtype)
        alive.add(block)
        most = max(most, len(alive))
        assert np.isnan(value) and shape == [rows, 2]
        return block

    monkeypatch.setattr(inputs.torch, "full", full)
    form = Form(sets=2, dtype=DType.FLOAT16, results={"output": [rows, 2]})
    inputs.poison(form, "cpu", calls)
    assert most == blocks and not alive
