"""The app for Modal, as far as it goes without an account: it is imported, and asked what it is."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import modal
import pytest
from click.testing import CliRunner

from nsabench.cli.fleet import command
from nsabench.errors import UsageError
from tests.fleet.test_devices import TINY


def write(folder: Path, *words: str) -> Path:
    matrix = folder / "tiny.yaml"
    matrix.write_text(TINY)
    out = folder / "rows"
    own = ["--shards", "2", "--out", str(out), "--gpu", "H100!", "--combo", "torch2.11.0-cu130"]
    done = CliRunner().invoke(command, ["modal", str(matrix), *own, *words])
    if done.exception is not None:
        raise done.exception
    return out / "app.py"


def test_it_is_an_app_with_a_function_a_shard(tmp_path: Path) -> None:
    path = write(tmp_path, "--secret", "nsabench-key")
    assert "@" not in path.read_text().replace("@app.", "")
    spec = importlib.util.spec_from_file_location("app_of_a_fleet", path)
    assert spec is not None and spec.loader is not None
    app = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(app)
    assert app.SHARDS == 2 and app.SECRETS == ["nsabench-key"]
    assert app.app.name == "nsabench-rows"
    assert isinstance(app.measure, modal.Function) and callable(app.main)
    assert 'gpu="H100!"' in path.read_text()


def test_it_is_python_without_modal(tmp_path: Path) -> None:
    compile(write(tmp_path).read_text(), "app.py", "exec")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpu", 'H100"'], "is no name for Modal"),
        (["--combo", "torch0"], "there is no combo 'torch0'"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, words: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        write(tmp_path, *words)
