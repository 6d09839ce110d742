"""The Tritons of a folder, and the Triton that a process imports."""

import os
import subprocess
import sys
from importlib import metadata

import pytest

from nsabench.errors import UsageError
from nsabench.versions import Triton, find_tritons, parse

INSTALLED = metadata.version("triton")


def put(folder, name, version):
    """Make the files of an installed Triton that an import and its metadata need."""
    own = folder / name
    (own / "triton").mkdir(parents=True)
    (own / "triton" / "__init__.py").write_text(f"__version__ = {version!r}\n")
    info = own / f"triton-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: triton\nVersion: {version}\n")
    return own


def test_versions_are_found_by_their_metadata(tmp_path):
    put(tmp_path, "old", "3.1.0")
    put(tmp_path, "3.10.0", "3.10.0")
    (tmp_path / "notes").mkdir()
    chosen = parse("3.10.0, 3.1.0,3.1.0", tmp_path)
    assert [t.version for t in chosen] == ["3.1.0", "3.10.0"]  # by number, not by letter
    assert [t.folder and t.folder.name for t in chosen] == ["old", "3.10.0"]
    assert {t.version for t in parse("all", tmp_path)} == {"3.1.0", "3.10.0", INSTALLED}


def test_missing_versions_are_usage_errors(tmp_path):
    with pytest.raises(UsageError, match=str(tmp_path)):
        find_tritons(tmp_path)
    put(tmp_path, "a", "3.1.0")
    with pytest.raises(UsageError, match=r"3\.2\.0") as missing:
        parse("3.2.0", tmp_path)
    assert "3.1.0" in missing.value.remedy
    with pytest.raises(UsageError):
        parse(" , ", tmp_path)
    put(tmp_path, "b", "3.1.0")
    with pytest.raises(UsageError, match=r"3\.1\.0"):
        find_tritons(tmp_path)
    with pytest.raises(UsageError, match=r"0\.0\.1"):
        parse("0.0.1")


def test_the_installed_triton_needs_no_folder():
    assert parse(INSTALLED) == [Triton(INSTALLED)]


def test_a_process_imports_the_triton_that_it_is_started_with(tmp_path):
    triton = Triton("3.1.0", put(tmp_path, "3.1.0", "3.1.0"))
    ask = "import triton, importlib.metadata as m; print(triton.__version__, m.version('triton'))"
    for asked_for, version in ((triton, "3.1.0"), (Triton(INSTALLED), INSTALLED)):
        answer = subprocess.run(
            [sys.executable, "-c", ask],
            env={**os.environ, **asked_for.variables},
            capture_output=True,
            text=True,
            check=True,
        )
        assert answer.stdout.split() == [version, version]
