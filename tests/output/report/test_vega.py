"""Charts' scripts are bundled once, and never taken from a file that was cut off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import vl_convert

from nsabench.output.report import vega

Bundled = list[str]


@pytest.fixture
def bundled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Bundled]:
    """How often it was bundled; there is no cache yet."""
    made: Bundled = []
    real: Callable[[str], str] = vl_convert.javascript_bundle

    def counted(snippet: str) -> str:
        made.append(snippet)
        return real(snippet)

    monkeypatch.setattr(vl_convert, "javascript_bundle", counted)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    vega.bundle.cache_clear()
    yield made
    vega.bundle.cache_clear()


def again() -> str:
    """As the next process does it."""
    vega.bundle.cache_clear()
    return vega.bundle(vl_convert)


def test_it_is_bundled_once_and_the_same(bundled: Bundled, tmp_path: Path) -> None:
    first = again()
    assert "vegaEmbed" in first and len(first) > 100_000
    assert again() == first
    assert len(bundled) == 1
    [kept] = (tmp_path / "cache").rglob("*.js")
    content = kept.read_bytes()
    for spoilt in (b"", content[:-1], content.replace(b"vega", b"evil", 1)):
        kept.write_bytes(spoilt)
        assert again() == first
        assert kept.read_bytes() == content
    assert len(bundled) == 4


def test_where_nothing_can_be_kept_it_is_bundled_all_the_same(
    bundled: Bundled, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("no folder")
    assert "vegaEmbed" in again()
    assert len(bundled) == 1
