"""Compare what a run holds with what it should hold, and name the difference."""

from __future__ import annotations

from collections import Counter

from nsabench.errors import VerificationFailed


def same(what: str, value: object, expected: object) -> None:
    """Raise `VerificationFailed` if a value is not as expected."""
    if value != expected:
        raise VerificationFailed(f"{what} is {value!r} and should be {expected!r}")


def same_members(what: str, members: Counter[object], expected: Counter[object]) -> None:
    """Raise `VerificationFailed` if a member is missing, or there too often."""
    for key, count in (expected - members).items():
        raise VerificationFailed(f"{what} {_text(key)} is missing ({count} of {expected[key]})")
    for key, count in (members - expected).items():
        raise VerificationFailed(f"{what} {_text(key)} is there {count} times too often")


def _text(key: object) -> str:
    return " ".join(map(str, key)) if isinstance(key, tuple) else str(key)
