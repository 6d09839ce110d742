"""The versions of torch, triton, CUDA and driver that fit each other."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class TorchRelease:
    """A release of torch on PyPI (x86_64), with the triton and the CUDA that it pins."""

    torch: str
    triton: str
    cuda: str


PAIRS = (
    TorchRelease("2.4.1", "3.0.0", "12.1"),
    TorchRelease("2.5.1", "3.1.0", "12.4"),
    TorchRelease("2.6.0", "3.2.0", "12.4"),
    TorchRelease("2.7.1", "3.3.1", "12.6"),
    TorchRelease("2.8.0", "3.4.0", "12.8"),
    TorchRelease("2.9.1", "3.5.1", "12.8"),
    TorchRelease("2.10.0", "3.6.0", "12.8"),
    TorchRelease("2.11.0", "3.6.0", "13.0"),
    TorchRelease("2.12.1", "3.7.1", "13.0"),
    TorchRelease("2.13.0", "3.7.1", "13.0"),
    TorchRelease("2.14.1", "3.8.0", "13.0"),
    TorchRelease("2.15.0", "3.9.0", "13.2"),
)

# By CUDA's major version, the oldest major version of the driver.
OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}


def numbers(version: str) -> tuple[int, ...]:
    """Return the release as numbers, such as (2, 13, 0) for "2.13.0+cpu"; () if there are none."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def pair_of(torch: str) -> TorchRelease | None:
    """Return the pair of torch's minor release, whose patch releases pin the same minor triton."""
    minor = numbers(torch)[:2]
    return next((pair for pair in PAIRS if numbers(pair.torch)[:2] == minor), None)


def unpaired(torch: str, triton: str) -> str:
    """Return the triton that this torch pins if `triton` is of another minor release, else ""."""
    pair = pair_of(torch)
    if pair is None or numbers(pair.triton)[:2] == numbers(triton)[:2]:
        return ""
    return pair.triton


@lru_cache(maxsize=16)  # called for every record
def describe_mismatch(torch: str | None, triton: str | None) -> str:
    """Return a sentence such as "unpaired: this torch belongs with triton 3.6.0", or ""."""
    other = unpaired(torch, triton) if torch and triton else ""
    return f"unpaired: this torch belongs with triton {other}" if other else ""
