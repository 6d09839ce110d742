"""Is one thing what another says it should be? What is not is named, in a sentence."""

from __future__ import annotations

from collections import Counter

from nsabench.errors import VerificationFailed


def same(what: str, value: object, expected: object) -> None:
    """Raises `VerificationFailed` when a value is not the one that is expected."""
    if value != expected:
        raise VerificationFailed(f"{what} is {value!r} and should be {expected!r}")


def same_members(what: str, members: Counter[object], expected: Counter[object]) -> None:
    """Raises `VerificationFailed` when one is missing, or there too often."""
    for key, count in (expected - members).items():
        raise VerificationFailed(f"{what} {_text(key)} is missing ({count} of {expected[key]})")
    for key, count in (members - expected).items():
        raise VerificationFailed(f"{what} {_text(key)} is there {count} times too often")


def _text(key: object) -> str:
    return " ".join(map(str, key)) if isinstance(key, tuple) else str(key)
