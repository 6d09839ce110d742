"""Installed distributions, the Triton that torch pins, and the table of pairs."""

import sys
from importlib import metadata

import pytest

from nsabench.machine.environment import collect
from nsabench.machine.environment.model import NO_WORKER
from nsabench.machine.environment.pairs import PAIRS, numbers, pair_of


def test_without_a_worker_the_distributions_still_speak():
    assert collect.collect(None, None).absent["software.torch"] == NO_WORKER
    distributions = collect.list_distributions(tuple(sys.path))
    assert distributions["pydantic"] == metadata.version("pydantic")
    assert "typing-extensions" in distributions  # by its normalised name


def test_remains_of_a_broken_uninstall_are_no_distribution(tmp_path):
    (tmp_path / "left_over-1.0.dist-info").mkdir()
    whole = tmp_path / "No.Record_Here-2.0.dist-info"
    whole.mkdir()
    (whole / "METADATA").write_text("Metadata-Version: 2.1\nName: No.Record_Here\nVersion: 2.0\n")
    assert collect.list_distributions((str(tmp_path),)) == {"no-record-here": "2.0"}


@pytest.mark.parametrize(
    ("requirements", "version"),
    [
        (["filelock", 'triton==3.6.0; platform_system == "Linux"'], "3.6.0"),
        (["triton (==2.2.0) ; platform_system == 'Linux'"], "2.2.0"),
        (["pytorch-triton==3.3.0+git96316ce5"], "3.3.0+git96316ce5"),
        (["triton-windows==3.1.0", "tritonclient==2.0"], None),
        (None, None),
    ],
)
def test_the_triton_that_torch_pins(monkeypatch, requirements, version):
    monkeypatch.setattr(metadata, "requires", lambda _: requirements)
    assert collect.triton_pinned_by_torch() == version


def test_pairs_ascend_and_are_found_by_minor_version():
    assert [numbers(p.torch) for p in PAIRS] == sorted(numbers(p.torch) for p in PAIRS)
    pair = pair_of("2.13.1+cu130")
    assert pair is not None and (pair.triton, pair.cuda) == ("3.7.1", "13.0")
    assert pair_of("1.13.1") is None
    assert pair_of("") is None
    assert numbers("2.13.0a0+git1") == (2, 13, 0)
