"""The size of the L2 under torches that say it and those that do not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from nsabench.worker.timing.cuda import l2_bytes


@pytest.mark.parametrize(
    ("properties", "mib"),
    [
        ({"name": "NVIDIA H200", "L2_cache_size": 50 << 20}, 50),
        ({"name": "NVIDIA GeForce RTX 4090"}, 72),  # torch 2.4 and older
        ({"name": "NVIDIA of tomorrow"}, 128),
    ],
)
def test_l2_bytes(properties: dict[str, object], mib: int) -> None:
    assert l2_bytes(SimpleNamespace(**properties)) == mib << 20
