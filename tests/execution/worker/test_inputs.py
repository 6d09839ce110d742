"""Sets of inputs: what is exchanged, how many there are, and how little memory it takes."""

from __future__ import annotations

import weakref
from random import Random

import numpy as np
import pytest
import torch

from nsabench import ops
from nsabench.execution.failure import Failure
from nsabench.execution.worker import inputs
from nsabench.execution.worker.checksums import Cut
from nsabench.execution.worker.inputs import InputSets
from nsabench.model.case import Case, Timing
from nsabench.model.vocabulary import Direction, DType, Status


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
def test_values_and_what_is_right_for_them_move_together(
    monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    sets = InputSets(case(), "cpu")
    before = [(s.clone(), sets.expected[i]["output"].clone()) for i, s in enumerate(sets.sets)]
    seeds = [sets.seed(i) for i in range(3)]
    addresses = [t.data_ptr() for s in sets.sets for t in s.tensors.values()]
    monkeypatch.setattr(inputs, "CHUNK_BYTES", chunk)
    for _ in range(5):
        sets.swap(0, Random())
    assert [t.data_ptr() for s in sets.sets for t in s.tensors.values()] == addresses
    for i in range(3):
        was, output = before[seeds.index(sets.seed(i))]
        for name, tensor in sets.sets[i].tensors.items():
            assert torch.equal(tensor, was.tensors[name])
            assert torch.equal(tensor, sets.draw(sets.seed(i)).tensors[name])
        assert torch.equal(sets.expected[i]["output"], output)


def test_there_are_as_many_sets_as_streams() -> None:
    """Calls at once on the same data read it once, and the work of a case counts it each time."""
    assert len(InputSets(case(streams=5), "cpu")) == 5
    assert len(InputSets(case(rotate=1), "cpu")) == 2


@pytest.mark.parametrize(
    ("streams", "free", "count"),
    [(1, None, 3), (1, 100_000, 3), (1, 8_000, 2), (4, 8_000, 4), (4, 100_000, 4)],
)
def test_memory_decides_how_many_sets_are_held(streams: int, free: int | None, count: int) -> None:
    assert inputs._affordable(case(streams), 1000, free) == count


def test_sets_that_leave_no_room_are_out_of_memory() -> None:
    with pytest.raises(Failure) as caught:
        inputs._affordable(case(streams=4), 1 << 30, 6 << 30)
    assert caught.value.status is Status.OUT_OF_MEMORY
    assert "4 sets of inputs and their oracles take 4.3 GB of the 6.4 GB" in caught.value.reason


def test_what_is_right_in_a_backward_comes_at_once_and_is_restored() -> None:
    """Of an op that finds its output on the way to its gradients, and of one that does not."""
    heads = {"B": 1, "HQ": 2, "H": 1, "D": 16, "Dv": 16}
    for op, own in (("selection_blocks", {"T": 70, "S": 2}), ("sliding_window", {"T": 9})):
        shape = heads | own | ({"window": 4} if op == "sliding_window" else {"block_size": 16})
        changes = {"op": op, "shape": shape, "direction": Direction.BACKWARD}
        distribution = ops.get(op).distributions[0]
        sets = InputSets(case().model_copy(update=changes | {"distribution": distribution}), "cpu")
        for index in range(len(sets)):
            right = ops.get(op).gradients(sets.sets[index], sets.grads[index])
            output = ops.get(op).oracle(sets.sets[index]).float()
            wanted = {f"d{name}": gradient for name, gradient in right.items()}
            assert torch.equal(sets.outputs[index], output)
            assert sets.expected[index].keys() == wanted.keys()
            for name, result in sets.results_of(index).items():
                result.add_(1)
                assert sets.repair()
                assert torch.equal(result, (wanted | {"output": output})[name])


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
    sets = InputSets(of, "cpu")
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
    # On a GPU an oracle that is computed again need not be the same to the last bit.
    expect = InputSets._expect
    monkeypatch.setattr(
        InputSets,
        "_expect",
        lambda *of: {name: result * (1 + 2**-20) for name, result in expect(*of).items()},
    )
    sets.expected[1][sets.results[0]].add_(1)
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
    expect = InputSets._expect

    def laid(tensor: torch.Tensor) -> torch.Tensor:
        if kind == "transposed":
            return tensor.mT.contiguous().mT
        if kind == "begins between words":
            narrow = torch.zeros(tensor.numel() + 1, dtype=torch.float32)[1:].view(tensor.shape)
            return narrow.copy_(tensor)
        return tensor

    def expected(sets: InputSets, index: int) -> dict[str, torch.Tensor]:
        return {name: laid(tensor) for name, tensor in expect(sets, index).items()}

    monkeypatch.setattr(InputSets, "_expect", expected)
    sets = InputSets(case(), "cpu")
    assert sets.any_changed() == ""  # whoever keeps a copy has it from here
    sets.swap(0, Random())
    assert sets.any_changed() == ""
    sets.expected[1]["output"][3, 1, 2] += 1
    assert sets.any_changed() == "the oracle of its output"
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

    def full(
        shape: torch.Size, value: float, *, dtype: torch.dtype, device: object
    ) -> torch.Tensor:
        nonlocal most
        block = torch.empty(0, dtype=dtype)
        alive.add(block)
        most = max(most, len(alive))
        assert np.isnan(value) and shape == (rows, 2)
        return block

    monkeypatch.setattr(inputs.torch, "full", full)
    result = torch.empty(1, dtype=torch.float64).expand(rows, 2)  # of any size, and no memory
    inputs.poison_like({"output": result}, torch.float16, calls)
    assert most == blocks and not alive
