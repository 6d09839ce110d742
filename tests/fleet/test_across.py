"""Shards of several GPU models are no one run, and make a comparison."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from nsabench.cli.merge import command
from nsabench.errors import UsageError
from nsabench.evidence.manifest import verify
from nsabench.signing import Signer
from tests.fleet.test_merge import FAST, shard


@pytest.fixture
def of_two_models(tmp_path: Path) -> list[Path]:
    """Both shards of a plan on an H200, and both on an L4 that takes four times as long."""
    signer = Signer(Ed25519PrivateKey.generate(), ephemeral=False)
    slow = replace(FAST, gpu="NVIDIA L4", base_ms=FAST.base_ms * 4)
    return [
        shard(tmp_path / place, signer, index, made, count=2)
        for place, made in (("h200", FAST), ("l4", slow))
        for index in (1, 2)
    ]


def test_a_run_of_each_model_and_a_comparison(tmp_path: Path, of_two_models: list[Path]) -> None:
    out = tmp_path / "models"
    words = [*map(str, of_two_models), "--across-gpus", "--out", str(out)]
    done = CliRunner().invoke(command, words)
    assert done.exit_code == 0, done.output
    runs = sorted(path.name for path in out.iterdir() if path.is_dir())
    assert runs == ["NVIDIA-H200", "NVIDIA-L4"]
    assert [verify(out / name).broken for name in runs] == [None, None]
    text = (out / "comparison.md").read_text()
    assert "NVIDIA L4" in text and "0.250" in text


def test_without_being_asked_to_it_refuses(tmp_path: Path, of_two_models: list[Path]) -> None:
    words = [*map(str, of_two_models), "--out", str(tmp_path / "models")]
    done = CliRunner().invoke(command, words)
    assert isinstance(done.exception, UsageError) and "GPU model differ" in str(done.exception)
    assert "--across-gpus" in done.exception.remedy


@pytest.mark.parametrize(
    ("given", "said"),
    [((0, 1), "all of these shards are of NVIDIA H200"), ((0, 1, 2), "missing: shard 2/2")],
)
def test_what_makes_no_comparison(
    tmp_path: Path, of_two_models: list[Path], given: tuple[int, ...], said: str
) -> None:
    shards = [str(of_two_models[index]) for index in given]
    done = CliRunner().invoke(command, [*shards, "--across-gpus", "--out", str(tmp_path / "m")])
    assert isinstance(done.exception, UsageError) and said in str(done.exception)
