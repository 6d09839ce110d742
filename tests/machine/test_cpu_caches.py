"""The size of the last-level cache follows from what Linux tells of the caches."""

import pytest

from nsabench.machine.cpu_caches import COMMON_BYTES, LEAST_BYTES, MOST_BYTES, last_level_bytes


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (("32K", "64K", "512K", "98304K"), 96 << 20),
        (("32K", "32K", "512K", "8192K"), LEAST_BYTES),
        (("32K", "32K", "2M", "504M"), MOST_BYTES),
        (("32K", "32K", "1024K"), COMMON_BYTES),
        (("32K", "32K", "1024K", "unknown"), COMMON_BYTES),
        ((), COMMON_BYTES),
    ],
)
def test_the_last_level_that_is_told_of(told, expected, tmp_path):
    levels = (1, 1, 2, 3)  # data, instructions, and two caches for both
    for number, (size, level) in enumerate(zip(told, levels, strict=False)):
        (tmp_path / f"index{number}").mkdir()
        (tmp_path / f"index{number}" / "size").write_text(f"{size}\n")
        (tmp_path / f"index{number}" / "level").write_text(f"{level}\n")
    assert last_level_bytes(tmp_path) == expected


def test_nothing_is_told_where_there_is_no_such_folder(tmp_path):
    assert last_level_bytes(tmp_path / "cache") == COMMON_BYTES
