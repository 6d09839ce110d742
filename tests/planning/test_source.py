"""Where an implementation comes from is typed, and the same text in plans as ever."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import yaml

from nsabench.model.plan import Plan
from nsabench.model.source import Source
from tests.published import backward_run, decode_run, whole_run

# Since the older runs were signed.
ADDED = ("modes", "least", "computes", "kind", "origin", "compiled_by", "computes_by")


def test_a_file_by_its_name_and_digest() -> None:
    file = Path("/somewhere/mine@home.py")
    source = Source.of_file(file, b"x = 1")
    digest = hashlib.sha256(b"x = 1").hexdigest()[:12]
    assert source == str(source) == f"mine@home.py@{digest}"
    assert (source.is_file, source.name, source.digest) == (True, "mine@home.py", digest)
    assert source.is_of(Path("elsewhere/mine@home.py"))
    assert not source.is_of(Path("home.py")) and not source.is_of(None)
    assert json.loads(json.dumps({source: "a"})) == {source: "a"}


def test_a_distribution_by_its_name() -> None:
    source = Source("nsa-kernels")
    assert (source.is_file, source.name, source.digest) == (False, "nsa-kernels", "")
    assert not source.is_of(Path("nsa-kernels"))


@pytest.mark.parametrize(
    ("published", "added"),
    [(backward_run, ADDED), (decode_run, ADDED), (whole_run, ("computes_by",))],
    ids=["backward", "decode", "whole"],
)
def test_plans_hold_the_text(
    published: Callable[[Path], Path], added: Sequence[str], tmp_path: Path
) -> None:
    run = published(tmp_path)
    plan = Plan.read(run / "plan.yaml")
    assert all(isinstance(i.source, Source) for i in plan.implementations)
    assert {str(i.source) for i in plan.implementations} <= plan.sources.keys()
    before = plan.sha256
    plan.write(tmp_path / "plan.yaml")
    assert plan.sha256 != before == Plan.read(run / "plan.yaml").sha256
    written, signed = (yaml.safe_load((f / "plan.yaml").read_text()) for f in (tmp_path, run))
    for item in written["implementations"]:
        for field in added:
            del item[field]
    for key in ("sources", "implementations"):
        assert written.get(key) == signed.get(key)
