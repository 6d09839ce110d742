"""Which calls the Hopper kernels take: windows, compressed keys, block scores and block selection,
forward and backward. These kernels must compile. Their results are tested on a Hopper GPU
(``gpu/test_*_hopper*_gpu.py``)."""

import os
import subprocess
import sys
from collections import defaultdict

import pyarrow.parquet as pq
import pytest
import torch
from nsa_kernels.band import backward, hopper, hopper_backward
from nsa_kernels.band.geometry import Band
from nsa_kernels.jit.compat import TRITON_VERSION
from nsa_kernels.launch.device import Device, runs_gluon
from nsa_kernels.launch.gated import Gated
from nsa_kernels.scoring import hopper as scoring
from nsa_kernels.selection.blocks import backward as blocks_backward
from nsa_kernels.selection.blocks.config import BlockConfig, hopper_backward_fits, hopper_fits
from nsa_kernels.selection.blocks.plan import build_plan
from triton.runtime.jit import KernelInterface

T, HQ, H, D = 4096, 16, 4, 128
WINDOW, COMPRESSED = Band(1, 1, 512), Band(32, 16, 0)
BOTH, OF_TRITON = {"launch_dq", "launch_dkv"}, {"band_dq_kernel", "band_dkv_kernel"}
SHARED_BYTES = 227 << 10  # the most that a program may use on Hopper


@pytest.fixture(autouse=True)
def on_hopper(monkeypatch):
    for of in (hopper, hopper_backward, backward, scoring):
        monkeypatch.setattr(of, "device_limits", lambda device: Device(132, SHARED_BYTES))
    for of in (hopper, scoring, blocks_backward):
        monkeypatch.setattr(of, "runs_gluon", lambda device: True)


def note_launches(monkeypatch):
    """Return a list, to which the names of launched Triton kernels are added. Nothing runs."""
    names = []

    def note(kernel, _):
        return lambda *arguments, **constants: names.append(kernel.fn.__name__)

    monkeypatch.setattr(KernelInterface, "__getitem__", note)
    return names


def drawn(t=T, d=D, n=None, hq=HQ, dtype=torch.bfloat16, b=1):
    """Return q, k, v and the gradient of the output, on the meta device."""
    sizes = ((t, hq), (t if n is None else n, H), (t if n is None else n, H), (t, hq))
    return tuple(torch.empty(b, *size, d, dtype=dtype, device="meta") for size in sizes)


def heads_first(x):
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def shifted(x):
    """Return a tensor of this shape, one element past an aligned address."""
    return torch.empty(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape)


def one_token(x):
    return x[:, :1].expand(x.shape)


def longer_rows(x):
    """Return x as a part of a tensor of twice as many heads."""
    return torch.cat([x, x], 2)[:, :, : x.shape[2]]


def table():
    return torch.empty(2, T, dtype=torch.int32, device="meta")


@pytest.mark.parametrize(
    ("sizes", "of_band", "of_scores"),
    [
        ({}, True, True),
        ({"dtype": torch.float16}, True, True),
        ({"dtype": torch.float32}, False, False),
        ({"d": 64}, False, False),
        ({"t": 3072}, False, False),  # too little work
        ({"t": 4032}, True, False),
        ({"t": 128, "b": 64}, False, False),  # each entry is a launch of few programs
        ({"n": 63}, False, True),
        ({"n": 3}, False, False),
        ({"t": 8192, "hq": 12}, True, False),  # three heads in a group
        ({"hq": 4}, False, False),
    ],
)
def test_sizes_of_bands_and_scores(sizes, of_band, of_scores):
    for band in (WINDOW, COMPRESSED):
        assert hopper.fits(*drawn(**sizes)[:3], band) == of_band
    q, k, *_ = drawn(**{"n": 255, **sizes})
    assert scoring.fits(q, k, COMPRESSED, 64) == of_scores


@pytest.mark.parametrize(
    ("change", "fits"),
    [(longer_rows, True), (heads_first, False), (one_token, False), (shifted, False)],
)
@pytest.mark.parametrize("which", range(4))
def test_layouts_of_bands_and_scores(which, change, fits):
    def changed(n):
        return tuple(change(x) if i == which else x for i, x in enumerate(drawn(n=n)))

    assert hopper_backward.fits(*changed(T), WINDOW) == fits
    assert hopper.fits(*changed(T)[:3], WINDOW) == (fits or which == 3)
    assert scoring.fits(*changed(255)[:2], COMPRESSED, 64) == (fits or which > 1)


def test_packed_sequences_and_blocks_of_other_sizes_go_to_triton():
    q, k, v, _ = drawn()
    assert not hopper.fits(q, k, v, Band(1, 1, 512, table(), table(), 3))
    assert not hopper.fits(q, k, drawn(d=64)[2], WINDOW)
    q, k, *_ = drawn(n=255)
    assert not scoring.fits(q, k, COMPRESSED, 32)
    assert not scoring.fits(q, k, Band(16, 16, 0), 64)
    assert not scoring.fits(q, k, Band(32, 16, 0, table(), table(), 3), 64)
    assert not runs_gluon(torch.device("cpu"))


def of_blocks(hq=16, h=4, d=D, dv=D, dtype=torch.bfloat16, n=70):
    """Return q, k, v, lse and the gradient of the output, on the meta device."""
    room = [(hq, d), (h, d), (h, dv), (hq, dv)]
    q, k, v, do = (torch.empty(n, *x, dtype=dtype, device="meta") for x in room)
    return q, k, v, torch.empty(n, hq, device="meta"), do


@pytest.mark.parametrize(
    ("sizes", "forward", "backward"),
    [
        *((x, True, True) for x in ({}, {"dtype": torch.float16}, {"n": 1})),
        *(({"hq": group, "h": 1}, True, True) for group in (1, 2, 4, 8, 16, 32, 64)),
        *((x, True, False) for x in ({"d": 64}, {"dv": 64}, {"d": 64, "dv": 64})),
        ({"n": (1 << 20) + 1}, True, False),  # offsets of more than 32 bits
        *((x, False, False) for x in ({"dtype": torch.float32}, {"d": 256}, {"d": 80})),
        *((x, False, False) for x in ({"dv": 32}, {"hq": 12}, {"hq": 128, "h": 1})),
    ],
)
def test_sizes_of_blocks(sizes, forward, backward):
    given = of_blocks(**sizes)
    for size in (64, 32):
        assert hopper_fits(*given[:3], size) == (forward and size == 64)
        assert hopper_backward_fits(*given, size) == (backward and size == 64)


LAYOUTS = {
    "a part": (lambda room: room[..., :D], True, True),
    "16 bytes further": (lambda room: room[..., 8 : 8 + D], True, True),
    "8 bytes further": (lambda room: room[..., 4 : 4 + D], False, False),
    "every other": (lambda room: room[..., : 2 * D : 2], False, False),
    # Rows begin at multiples of 16 bytes. Triton is told only of multiples of 16 elements.
    "16 bytes apart": (lambda room: room[..., :-8].contiguous()[..., :D], False, False),
    "one head": (lambda room: room[:, :1, :D].expand(-1, room.shape[1], -1), True, False),
    # Each token begins 17.5 heads after the one before.
    "half a head": (
        lambda room: room.new_zeros(70 * 18 * D).as_strided(
            (*room.shape[:2], D), (17 * D + D // 2, D, 1)
        ),
        True,
        False,
    ),
    "heads first": (lambda room: heads_first(room[None, ..., :D])[0], True, False),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_of_blocks(name):
    """For the backward, head strides of q and of the gradient must divide their token strides."""
    change, forward, backward = LAYOUTS[name]
    for which in (0, 1, 2, 4):
        given = list(of_blocks())
        room = torch.zeros(*given[which].shape[:2], 2 * D + 16, dtype=torch.bfloat16)
        given[which] = change(room)
        assert hopper_fits(*given[:3], 64) == (forward or which == 4)
        assert hopper_backward_fits(*given, 64) == (backward if which in (0, 4) else forward)
    assert not hopper_backward_fits(*of_blocks()[:4], of_blocks(dtype=torch.float16)[4], 64)


@pytest.mark.parametrize(
    ("sizes", "block_size"),
    [({"d": 64, "dv": 64}, 64), ({"hq": 12}, 64), ({"dtype": torch.float32}, 64), ({}, 32)],
)
def test_backwards_of_blocks_that_go_to_triton(sizes, block_size, monkeypatch):
    q, k, v, lse, do = of_blocks(**sizes)
    n, h = k.shape[:2]
    names = note_launches(monkeypatch)
    index = torch.zeros(1, n, h, 3, dtype=torch.int32)
    plan = build_plan(index, None, block_size, 32, cleared=False)
    config, gated = BlockConfig(64, 64, 4, None), Gated(lse, lse, None)
    blocks_backward.block_major_backward(q, k, v, do, lse, do, plan, D**-0.5, h, config, gated)
    assert "backward_kernel" in names


MATRIX = """\
op: selection_blocks
axes: {dtype: [float16, bfloat16], direction: backward, D: [64, 128], H: [2, 8], B: 1, T: 16384,
  HQ: 32, S: 16}
---
op: nsa_attention
axes: {dtype: bfloat16, direction: backward}
include:
  - {B: 1, T: 8192, HQ: 64, H: 4, D: 128, block: 32, stride: 16, block_size: 64, n_selected: 16,
     window: 512}
"""


def compiled(folder, matrix, architectures):
    """Return the table that `nsabench preflight` writes for a matrix: a row for each variant of
    each kernel. Files go into ``folder``, which exists."""
    file, table = folder / "matrix.yaml", folder / "compiled.parquet"
    file.write_text(matrix)
    command = [sys.executable, "-m", "nsabench", "preflight", file, "--arch", architectures]
    done = subprocess.run(
        [*command, "--out", table],
        capture_output=True,
        text=True,
        timeout=250,
        env={name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return pq.read_table(table).to_pylist()


@pytest.mark.skipif(TRITON_VERSION[:2] != (3, 6), reason="needs the Gluon of Triton 3.6")
def test_all_kernels_compile_and_fit_and_nothing_else_has_them(tmp_path):
    of_all = defaultdict(list)
    for row in compiled(tmp_path, MATRIX, "sm_89,sm_90"):
        of_all[row["implementation"], row["architecture"], row["kernel"]].append(row)
    bands = {f"band_hopper{of}_kernel" for of in ("", "_dq", "_dkv")}
    of_whole = {kernel for name, arch, kernel in of_all if (name, arch) == ("nsa", "sm_90")}
    assert of_whole >= {*bands, "hopper_forward_kernel", "hopper_backward_kernel"}
    assert "block_scores_hopper_kernel" in of_whole
    assert not [kernel for _, arch, kernel in of_all if arch == "sm_89" and "hopper" in kernel]
    found = {of[1:]: rows for of, rows in of_all.items() if of[0] == "blocks"}
    assert len(found["sm_90", "hopper_forward_kernel"]) == 8  # variants by dtype, D and group
    assert len(found["sm_89", "backward_kernel"]) == 8
    assert len(found["sm_90", "backward_kernel"]) == 4  # D = 64
    assert len(found["sm_90", "hopper_backward_kernel"]) == 4
    for row in found["sm_90", "hopper_forward_kernel"]:
        # Four programs share a multiprocessor.
        assert row["occupancy"] == 0.25 and row["spill_bytes"] <= 16, row
    for row in found["sm_90", "hopper_backward_kernel"]:
        assert " D=" not in row["constants"] and row["status"] == "ok"
        assert row["spill_bytes"] <= 256, row
    for rows in of_all.values():
        assert all(row["shared_bytes"] <= SHARED_BYTES for row in rows)
