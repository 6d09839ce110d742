"""Who is to blame for what cannot be seen."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from nsabench.execution.supervisor import look
from nsabench.execution.supervisor.turnstile import Papers
from nsabench.model.vocabulary import Status


def test_outputs_that_are_not_as_they_should_be_are_wrong(tmp_path: Path) -> None:
    outputs, copy = tmp_path / "outputs", tmp_path / "copy"
    outputs.write_bytes(b"x" * 100)
    look._taken(outputs, copy, 100)
    assert copy.read_bytes() == outputs.read_bytes()
    (tmp_path / "link").symlink_to(outputs)
    (tmp_path / "folder").mkdir()
    for name, size in (("outputs", 99), ("link", 100), ("folder", 100), ("missing", 100)):
        with pytest.raises(look.Fault) as fault:
            look._taken(tmp_path / name, copy, size)
        assert fault.value.status is Status.WRONG


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("size", [100, 100_000])
def test_a_disk_of_ours_that_is_full_is_nobodys_fault(tmp_path: Path, size: int) -> None:
    """Whether it is so when it is written, or when it is closed."""
    outputs = tmp_path / "outputs"
    outputs.write_bytes(b"x" * size)
    with pytest.raises(look.Unseen, match="No space left"):
        look._taken(outputs, Path("/dev/full"), size)


def test_inputs_that_cannot_be_kept_for_the_baseline_are_nobodys_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(one: Path, other: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    posed, kept = Papers(tmp_path, "posed", 2), Papers(tmp_path, "kept", 2)
    posed.of(1)[0].write_bytes(b"x")
    with pytest.raises(look.Unseen, match="No space left"), look._room():
        posed.copy(kept)
