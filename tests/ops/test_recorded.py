"""A model is trained, its layers' choices of blocks are recorded, and a case draws them."""

import numpy as np
import pytest

from nsabench import ops
from nsabench.errors import UsageError
from nsabench.model.vocabulary import DType
from nsabench.ops._block_choices import read_recording, unpack_recording
from tools import recordings

BLOCK, SLOTS, HEADS, TOKENS = 16, 5, 3, 400
OP = ops.get("selection_blocks")


def draw(distribution, seed, **sizes):
    """Return block_indices [heads, T, S]."""
    shape = OP.shape_model.model_validate({"B": 1, "D": 16, **sizes})
    inputs = OP.draw(shape, DType.FLOAT16, distribution, seed, "cpu")
    return inputs.tensors["block_indices"][0].transpose(0, 1).numpy()


@pytest.fixture
def selection():
    return draw("local", 3, T=TOKENS, HQ=HEADS, H=HEADS, S=SLOTS, block_size=BLOCK)


@pytest.fixture
def recording(selection):
    return recordings.of_selection(selection, BLOCK, "by hand")


def test_a_recording_is_read_as_it_was_written(recording):
    unpacked = unpack_recording(recordings.pack(recording))
    assert (unpacked.block, unpacked.slots, unpacked.made) == (BLOCK, SLOTS, "by hand")
    assert (unpacked.chosen == recording.chosen).all()


@pytest.mark.parametrize(
    "other", [{"T": 16448}, {"S": 15}, {"block_size": 32}], ids=["tokens", "slots", "block"]
)
def test_sizes_that_were_not_recorded_are_refused(other):
    with pytest.raises(UsageError, match="16 blocks of 64 keys"):
        draw("recorded", 0, **{"T": 4096, "HQ": 2, "H": 2, "S": 16, "block_size": 64, **other})


def test_a_row_without_its_forced_blocks_is_no_recording(selection):
    other = selection.copy()
    other[1, 350] = [3, 4, 5, 6, 7]
    with pytest.raises(ValueError, match="different blocks"):
        recordings.of_selection(other, BLOCK, "")


def test_what_is_drawn_is_what_was_recorded():
    """Recorded heads are used in turn, beginning with one that the seed chooses."""
    shipped, tokens = read_recording(), 2048
    assert shipped.chosen.shape[:2] == (8, 16384)
    assert "of the library of Python" in shipped.made
    drawn = np.sort(draw("recorded", 0, T=tokens, HQ=9, H=9, S=16, block_size=64), axis=-1)
    many = np.arange(16 * 64, tokens)
    own = many // 64
    recorded = np.unpackbits(shipped.chosen[:, many], axis=-1)
    places = [
        next(n for n, rows in enumerate(recorded) if rows[-1, head[-1, 1:-2]].all())
        for head in drawn
    ]
    assert places == [(places[0] + i) % 8 for i in range(9)]
    for place, head in zip(places, drawn[:, many], strict=True):
        assert (head[:, 0] == 0).all()
        assert (head[:, -1] == own).all() and (head[:, -2] == own - 1).all()
        assert (np.nonzero(recorded[place])[1].reshape(len(many), 13) == head[:, 1:-2]).all()
    assert 20 < recordings.agreement(shipped, 2) < 22
