"""Which torch, triton, CUDA and driver belong together. The one place that says so."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Pair:
    """A release of torch on PyPI (x86_64), the triton it pins and the CUDA it was built for."""

    torch: str
    triton: str
    cuda: str


PAIRS = (
    Pair("2.4.1", "3.0.0", "12.1"),
    Pair("2.5.1", "3.1.0", "12.4"),
    Pair("2.6.0", "3.2.0", "12.4"),
    Pair("2.7.1", "3.3.1", "12.6"),
    Pair("2.8.0", "3.4.0", "12.8"),
    Pair("2.9.1", "3.5.1", "12.8"),
    Pair("2.10.0", "3.6.0", "12.8"),
    Pair("2.11.0", "3.6.0", "13.0"),
    Pair("2.12.1", "3.7.1", "13.0"),
    Pair("2.13.0", "3.7.1", "13.0"),
    Pair("2.14.1", "3.8.0", "13.0"),
    Pair("2.15.0", "3.9.0", "13.2"),
)

# CUDA major version -> oldest major version of the driver that runs it.
OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}


def numbers(version: str) -> tuple[int, ...]:
    """The release part: "2.13.0+cpu" -> (2, 13, 0). Empty when it starts with no number."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def pair_of(torch: str) -> Pair | None:
    """The pair of the same minor release of torch; patch releases keep triton's minor version."""
    minor = numbers(torch)[:2]
    return next((pair for pair in PAIRS if numbers(pair.torch)[:2] == minor), None)


def unpaired(torch: str, triton: str) -> str:
    """The triton that this torch belongs with, if the one given is of another minor release; else
    empty."""
    pair = pair_of(torch)
    if pair is None or numbers(pair.triton)[:2] == numbers(triton)[:2]:
        return ""
    return pair.triton


@lru_cache(maxsize=16)  # asked of every record, and nearly all are of the same versions
def belongs(torch: str | None, triton: str | None) -> str:
    """How a torch and a Triton that are no pair are marked wherever they are named:
    `unpaired: this torch belongs with triton 3.6.0`. Empty for a pair, and where one is unknown."""
    other = unpaired(torch, triton) if torch and triton else ""
    return f"unpaired: this torch belongs with triton {other}" if other else ""
