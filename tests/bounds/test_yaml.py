"""YAML of ours is counted by a parser only where its bytes leave it open how many values it has."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from nsabench.bounds import OutOfBounds
from nsabench.bounds import yaml as bounded

TEXTS = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=5)
DATA = st.recursive(
    st.none() | st.booleans() | st.integers(0, 99) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


def values(data: object) -> int:
    """Itself, and all in it: keys count, too."""
    if isinstance(data, dict):
        return 1 + sum(1 + values(value) for value in data.values())
    return 1 + (sum(map(values, data)) if isinstance(data, list) else 0)


@settings(max_examples=200, deadline=None)
@given(DATA, st.sampled_from([None, True, False]))
def test_one_value_too_many_is_always_seen(data: object, flow: bool | None) -> None:
    text = yaml.safe_dump(data, default_flow_style=flow).encode()
    bounded.refuse_large(text, len(text), values(data))
    with pytest.raises(OutOfBounds, match="holds more than"):
        bounded.refuse_large(text, len(text), values(data) - 1)


def test_what_an_alias_repeats_counts_each_time() -> None:
    text = b"a: &x [1, 2, 3]\nb: *x\n"
    bounded.refuse_large(text, len(text), 11)
    with pytest.raises(OutOfBounds, match="holds more than"):
        bounded.refuse_large(text, len(text), 10)
