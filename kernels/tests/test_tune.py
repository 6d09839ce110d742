"""Tuned tiles: which fit, which are written, read and used. Timing them needs a GPU."""

import runpy
from pathlib import Path

import pytest
import torch
from nsa_kernels import tune
from nsa_kernels.launch import config, tuned
from nsa_kernels.launch.device import Device
from nsa_kernels.selection.ranges.config import ranges_config
from nsa_kernels.selection.rows.config import rows_config
from nsa_kernels.selection.varlen.config import varlen_config

CPU = torch.device("cpu")
SHAPE = (1000, 8, 1000, 128, 128)


def configured(dtype=torch.bfloat16, given=None):
    return rows_config.__wrapped__(*SHAPE, dtype, CPU, given)


def test_only_tiles_that_fit_the_gpu_are_tried():
    small, large = (tune.fitting(128, 128, kib << 10) for kib in (99, 227))
    assert set(small) < set(large) and (128, 4, 2) not in small and (128, 4, 2) in large
    for block_l, warps, stages in small:
        assert config.shared_estimate(16, block_l, 128, 128, 2, stages) <= 99 << 10
        got = configured(given=(block_l, warps, stages))
        assert (got.block_l, got.num_warps, got.num_stages) == (block_l, warps, max(stages, 2))


def test_a_tuned_tile_is_used_where_it_was_measured(monkeypatch):
    rule = configured()
    assert not rule.tuned and rule == configured(given=config.RULE)
    monkeypatch.setattr(config, "tuned_tiles", lambda device: {rule.shape_class: (16, 2, 3)})
    got = configured()
    assert got.tuned and (got.block_l, got.num_warps, got.num_stages) == (16, 2, 3)
    assert configured(given=config.RULE) == rule
    assert not configured(torch.float32).tuned, "tiles are measured with two bytes an element"
    other = rows_config.__wrapped__(1000, 8, 100, 128, 128, torch.bfloat16, CPU)
    assert not other.tuned, "another class"


def test_every_kernel_has_classes():
    rows = rows_config(2, 8, 4096, 64, 64, torch.float16, CPU)
    varlen = varlen_config(8, 8, 8 * 300, 128, 64, None, torch.float16, CPU)
    ranges = ranges_config(10_000, 8, 16, 65536, 64, 64, None, torch.float16, CPU)
    classes = [one.shape_class for one in (rows, varlen, ranges)]
    assert classes == ["rows-split-narrow-2048", "varlen-some-wide-512", "ranges-many-narrow-64"]


@pytest.mark.parametrize("rows", [67, 96, 132, 160, 198, 264, 384])
def test_unsplit_rows_keep_memory_busy(rows, monkeypatch):
    # In a round trip (1.5 us), 4.8 TB/s bring 55 KB to each multiprocessor; 60 are safe.
    monkeypatch.setattr(
        "nsa_kernels.selection.rows.config.device_limits", lambda device: Device(132, 227 << 10)
    )
    got = rows_config.__wrapped__(rows, 8, 2048, 128, 128, torch.bfloat16, CPU)
    ahead = (got.num_stages - 1) * got.block_l * (128 + 128) * 2
    assert got.splits == 1 and max(rows // 132, 1) * ahead >= 60_000


def test_the_file_is_read_back(tmp_path, monkeypatch):
    monkeypatch.setenv("NSA_KERNELS_CACHE", str(tmp_path))
    tiles = {"rows-many-wide-512": (64, 4, 2), "ranges-some-wide-64": (32, 2, 4)}
    path = tuned.write("NVIDIA H200", tiles)
    assert path.parent.parent == tmp_path and "NVIDIA-H200" in path.name
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    read = tuned.tuned_tiles.__wrapped__
    assert read(torch.device("cuda", 0)) == tiles
    assert read(CPU) == {}
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "another GPU")
    assert read(torch.device("cuda", 0)) == {}
    assert list(path.parent.iterdir()) == [path], "no temporary file is left"


@pytest.mark.parametrize(
    "text", ["", "[]", '{"tiles": {"x": 3}}', '{"tiles": {"x": [48, 4, 2]}}', '{"tiles": 1}']
)
def test_a_broken_file_is_named(text):
    with pytest.raises(ValueError, match=r"/a/file.*(delete|python -m nsa_kernels\.tune)"):
        tuned.parse(text, Path("/a/file"))


def test_the_rule_stays_unless_another_is_clearly_faster():
    rule, other = configured(), configured(given=(16, 2, 3))
    assert tune.choose({rule: 1.0, other: 0.99}, rule) is rule
    assert tune.choose({rule: 1.0, other: 0.9}, rule) is other


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
@pytest.mark.skipif(torch.cuda.is_available(), reason="is what happens without a GPU")
def test_without_a_gpu_it_says_so():
    with pytest.raises(SystemExit, match="no CUDA device"):
        runpy.run_module(tune.__name__, run_name="__main__")
