"""Foreign code wrote the caches that a worker starts with. They are copied completely or not at
all."""

import os
from itertools import count
from pathlib import Path

import pytest

from nsabench.worker import sandbox


@pytest.fixture
def others(tmp_path):
    (tmp_path / "others/triton/a").mkdir(parents=True)
    (tmp_path / "others/triton/a/kernel.cubin").write_bytes(b"x" * 100)
    return tmp_path / "others"


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own/triton").mkdir(parents=True)
    return tmp_path / "own"


def test_files_come_as_they_are_and_links_as_links(others, own):
    secret = others.parent / "secret"
    secret.write_text("of the key")
    kernel = others / "triton/a/kernel.cubin"
    kernel.chmod(0o500)
    os.utime(kernel, ns=(1, 10**18 + 1))  # ninja compares to the nanosecond
    (others / "triton/link").symlink_to(secret)
    sandbox.copy_caches(others, own)
    brought = (own / "triton/a/kernel.cubin").stat()
    assert (brought.st_mtime_ns, brought.st_mode & 0o777) == (10**18 + 1, 0o500)
    assert (own / "triton/link").is_symlink()
    assert sorted(path.name for path in (own / "triton/a").iterdir()) == ["kernel.cubin"]


def test_what_was_chosen_beside_others_is_not_brought(others, own):
    """Triton and Inductor keep which variant was the fastest, while a dozen others used the GPU."""
    for name in ("parallel_nsa_fwd_kernel.autotune.json", "k.best_config", "parallel.json"):
        (others / "triton/a" / name).touch()
    sandbox.copy_caches(others, own)
    kept = {path.name for path in (own / "triton/a").iterdir()}
    assert kept == {"kernel.cubin", "parallel.json"}


def _a_pipe(cache):
    os.mkfifo(cache / "pipe")  # to open it would last for ever


def _too_much(cache):
    (cache / "kernel.cubin").touch()


def _a_link_in_its_place(cache):
    cache.rename(cache.with_name("away"))
    cache.symlink_to("/dev")


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir])
def test_a_large_cache_is_not_walked_to_its_end(others, own, monkeypatch, make):
    for name in range(50):
        make(others / "triton" / str(name))
    clock = count()
    monkeypatch.setattr(sandbox.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(sandbox, "_COPYING_S", 5.0)
    sandbox.copy_caches(others, own)
    assert next(clock) < 10 and not any((own / "triton").iterdir())


@pytest.mark.parametrize("hostile", [_a_pipe, _too_much, _a_link_in_its_place])
def test_a_cache_that_cannot_be_brought_whole_is_left_out(others, own, monkeypatch, hostile):
    if hostile is _too_much:
        monkeypatch.setattr(sandbox, "_COPYING_S", -1.0)
    hostile(others / "triton")
    sandbox.copy_caches(others, own)
    assert [path.name for path in own.iterdir()] == ["triton"] and not any(
        (own / "triton").iterdir()
    )
