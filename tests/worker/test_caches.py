"""What a worker begins with was written by foreign code, and is brought whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nsabench.worker import caches
from nsabench.worker.caches import Caches


@pytest.fixture
def others(tmp_path: Path) -> Path:
    (tmp_path / "others/triton/a").mkdir(parents=True)
    (tmp_path / "others/triton/a/kernel.cubin").write_bytes(b"x" * 100)
    return tmp_path / "others"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "own/triton").mkdir(parents=True)
    return tmp_path / "own"


def test_files_come_as_they_are_and_links_as_links(others: Path, own: Path) -> None:
    secret = others.parent / "secret"
    secret.write_text("of the key")
    kernel = others / "triton/a/kernel.cubin"
    kernel.chmod(0o500)
    os.utime(kernel, ns=(1, 10**18 + 1))  # ninja compares to the nanosecond
    (others / "triton/link").symlink_to(secret)
    os.mkfifo(others / "triton/a/pipe")
    assert Caches(others, own).bring("triton")
    brought = (own / "triton/a/kernel.cubin").stat()
    assert (brought.st_mtime_ns, brought.st_mode & 0o777) == (10**18 + 1, 0o500)
    assert (own / "triton/link").is_symlink()
    assert sorted(path.name for path in (own / "triton/a").iterdir()) == ["kernel.cubin"]


def test_what_was_chosen_beside_others_is_not_brought(others: Path, own: Path) -> None:
    """Triton and Inductor keep which variant was the fastest, while a dozen others used the GPU."""
    for name in ("parallel_nsa_fwd_kernel.autotune.json", "k.best_config", "parallel.json"):
        (others / "triton/a" / name).touch()
    assert Caches(others, own).bring("triton")
    kept = {path.name for path in (own / "triton/a").iterdir()}
    assert kept == {"kernel.cubin", "parallel.json"}


def _holes(cache: Path) -> None:
    with (cache / "holes").open("wb") as sparse:
        sparse.truncate(1 << 40)  # takes no room until it is copied


def _depth(cache: Path) -> None:
    for _ in range(caches.MOST_DEPTH + 1):
        cache = cache / "d"
        cache.mkdir()


def _many(cache: Path) -> None:
    for number in range(70):
        (cache / str(number)).touch()


def _a_link_in_its_place(cache: Path) -> None:
    cache.rename(cache.with_name("away"))
    cache.symlink_to("/dev")


@pytest.mark.parametrize("hostile", [_holes, _depth, _many, _a_link_in_its_place])
def test_a_cache_that_cannot_be_brought_whole_is_left_out(
    others: Path, own: Path, monkeypatch: pytest.MonkeyPatch, hostile: Callable[[Path], None]
) -> None:
    monkeypatch.setattr(caches, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(caches, "MOST_FILES", 64)
    hostile(others / "triton")
    (others / "inductor").mkdir()
    brought = Caches(others, own)
    assert not brought.bring("triton")
    assert [path.name for path in own.iterdir()] == ["triton"] and not any(
        (own / "triton").iterdir()
    )
