"""What the kernel says of programs that waited for a core, and where it says nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsabench.machine import pressure


@pytest.mark.parametrize(
    ("content", "seconds"),
    [
        ("some avg10=0.12 avg60=0.31 avg300=0.15 total=2500000\nfull avg10=0 total=9\n", 2.5),
        ("full avg10=0.00 total=9\n", None),
        ("some avg10=0.12 total=\n", None),
        (None, None),
    ],
)
def test_what_is_read(tmp_path: Path, content: str | None, seconds: float | None) -> None:
    (tmp_path / "proc/pressure").mkdir(parents=True)
    if content is not None:
        (tmp_path / "proc/pressure/cpu").write_text(content)
    assert pressure.waited_s(tmp_path) == seconds


@pytest.mark.parametrize(
    ("waited", "busy"), [((5.0, 5.0), False), ((5.0, 9.0), True), ((None, 9.0), False)]
)
def test_busy_is_where_somebody_waited(
    monkeypatch: pytest.MonkeyPatch, waited: tuple[float | None, float], busy: bool
) -> None:
    readings = iter(waited)
    monkeypatch.setattr(pressure, "waited_s", lambda: next(readings))
    assert pressure.watch()() is busy
