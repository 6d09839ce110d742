"""A model learns, its layers' choices of blocks are recorded, and a case draws them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nsabench.errors import UsageError
from nsabench.ops import _block_draws, _recorded
from tests import recordings

BLOCK, SLOTS, HEADS, TOKENS = 16, 5, 3, 400

# What a GPU makes in minutes, in one that fits Triton's interpreter.
SMALL = """
from tests.gpu.record_selections import Sizes, main
sizes = Sizes(layers=2, dim=16, heads=2, kv_heads=1, head_dim=16, block_size=16, n_selected=4,
              window=16, batch=1, tokens=96, recorded=128)
main("60", {file!r}, sizes, 2)
"""


@pytest.fixture
def selection() -> np.ndarray:
    """block_indices [HEADS, TOKENS, SLOTS]."""
    position = np.arange(TOKENS, dtype=np.int32)
    drawn = _block_draws.indices("local", 1, position, HEADS, SLOTS, BLOCK, seed=3)
    return drawn[0].transpose(1, 0, 2)


@pytest.fixture
def installed(selection: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> _recorded.Recording:
    packed = recordings.pack(recordings.of_selection(selection, BLOCK, "by hand"))
    recording = _recorded.unpack(packed)
    monkeypatch.setattr(_recorded, "shipped", lambda: recording)
    return recording


def test_what_is_drawn_is_what_was_recorded(
    selection: np.ndarray, installed: _recorded.Recording
) -> None:
    position = np.arange(300, dtype=np.int32)
    drawn = _block_draws.indices("recorded", 2, position, 2, SLOTS, BLOCK, seed=7)
    assert drawn.shape == (2, 300, 2, SLOTS)
    ordered = np.sort(drawn, axis=-1)
    recorded = np.sort(selection[:, :300], axis=-1)
    same = [
        [(ordered[b, :, h] == head).all() for head in recorded] for b in range(2) for h in range(2)
    ]
    first = same[0].index(True)
    assert [one.index(True) for one in same] == [(first + i) % HEADS for i in range(4)]
    assert installed.made == "by hand"


def test_how_far_neighbours_agree(selection: np.ndarray, installed: _recorded.Recording) -> None:
    rows = selection[:, SLOTS * BLOCK :]
    pairs = [
        len(set(rows[head, t]) | set(rows[head, t + 1]))
        for head in range(HEADS)
        for t in range(0, rows.shape[1] - 1, 2)
    ]
    assert recordings.agreement(installed, 1) == SLOTS
    assert recordings.agreement(installed, 2) == pytest.approx(np.mean(pairs))


@pytest.mark.parametrize(("tokens", "slots", "block"), [(500, 5, 16), (300, 4, 16), (300, 5, 32)])
@pytest.mark.usefixtures("installed")
def test_other_sizes_are_refused(tokens: int, slots: int, block: int) -> None:
    with pytest.raises(UsageError, match="distribution recorded holds 5 blocks of 16 keys"):
        _recorded.refuse_misfit(slots, block, tokens)


def test_a_row_without_its_forced_blocks_is_no_recording(selection: np.ndarray) -> None:
    other = selection.copy()
    other[1, 350] = [3, 4, 5, 6, 7]
    with pytest.raises(ValueError, match="no 5 different blocks"):
        recordings.of_selection(other, BLOCK, "")


def test_a_model_is_trained_and_recorded(tmp_path: Path) -> None:
    file = tmp_path / "recorded.xz"
    done = subprocess.run(
        [sys.executable, "-c", SMALL.format(file=str(file))],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    about = json.loads(done.stdout[done.stdout.index("{") :])
    recording = _recorded.unpack(file.read_bytes())
    assert (about["heads"], recording.chosen.shape[1], recording.slots) == (2, 128, 4)
    assert 4 < about["different blocks of neighbours"]["2"] <= 8
    assert "2 steps of 1 x 96 bytes of the library of Python" in recording.made


def test_what_is_shipped_is_drawn_as_it_was_chosen() -> None:
    recording, tokens = _recorded.shipped(), 4096
    assert recording.chosen.shape[:2] == (8, 16384)
    assert (recording.slots, recording.block) == (16, 64)
    assert "of the library of Python" in recording.made
    position = np.arange(tokens, dtype=np.int32)
    drawn = np.sort(_block_draws.indices("recorded", 1, position, 2, 16, 64, seed=0)[0], axis=-1)
    own = position[:, None] // 64
    many = position >= 16 * 64
    assert (np.diff(drawn[many], axis=-1) > 0).all()
    assert (drawn[..., -1] == own).all() and (drawn[many, :, -2] == own[many] - 1).all()
    assert (drawn[many, :, 0] == 0).all()
    assert 20 < recordings.agreement(recording, 2) < 22
