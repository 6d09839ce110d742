"""What Linux tells of a CPU's caches."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsabench.machine.cpu_caches import COMMON_BYTES, last_level_bytes


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (("32K", "64K", "512K", "98304K"), 96 << 20),
        (("32K", "1024K"), COMMON_BYTES // 4),
        (("48K", "2M", "1G"), 1 << 30),
        (("32K", "unknown", "40960K"), 40 << 20),
        (("unknown",), COMMON_BYTES),
        ((), COMMON_BYTES),
    ],
)
def test_the_largest_that_is_told_of(told: tuple[str, ...], expected: int, tmp_path: Path) -> None:
    for number, size in enumerate(told):
        (tmp_path / f"index{number}").mkdir()
        (tmp_path / f"index{number}" / "size").write_text(f"{size}\n")
    assert last_level_bytes(tmp_path) == expected


def test_nothing_is_told_where_there_is_no_such_folder(tmp_path: Path) -> None:
    assert last_level_bytes(tmp_path / "cache") == COMMON_BYTES
