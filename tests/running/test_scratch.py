"""Foreign code wrote to a scratch, and may have put anything there."""

from __future__ import annotations

from pathlib import Path

from nsabench.running.clients import TemporaryFolder


def test_a_folder_that_its_owner_cannot_read_is_removed() -> None:
    folder = TemporaryFolder()
    (Path(folder.name) / "closed/inner").mkdir(parents=True)
    (Path(folder.name) / "closed").chmod(0)
    folder.remove()
    assert not Path(folder.name).exists()


def test_a_link_in_place_of_the_folder_is_removed_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").touch(0o400)
    folder = TemporaryFolder()
    Path(folder.name).rmdir()
    Path(folder.name).symlink_to(tmp_path)
    folder.remove()
    assert not Path(folder.name).is_symlink()
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o400
