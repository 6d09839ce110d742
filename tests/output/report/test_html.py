"""The scripts of charts are bundled once for all pages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import vl_convert

from nsabench.output.report import html


@pytest.mark.parametrize(("can_be_kept", "times"), [(True, 1), (False, 2)])
def test_scripts_are_bundled_once_if_they_can_be_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, can_be_kept: bool, times: int
) -> None:
    made: list[str] = []
    real: Callable[[str], str] = vl_convert.javascript_bundle

    def counted(snippet: str) -> str:
        made.append(snippet)
        return real(snippet)

    monkeypatch.setattr(vl_convert, "javascript_bundle", counted)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if not can_be_kept:
        (tmp_path / "cache").write_text("no folder")
    texts = set()
    for _ in range(2):  # as the next process does it
        html._bundle.cache_clear()
        texts.add(html._bundle())
    html._bundle.cache_clear()
    assert len(texts) == 1 and "vegaEmbed" in texts.pop()
    assert len(made) == times
