"""Where an implementation comes from is typed, and a text in plans."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from nsabench.model.source import Source


def test_a_file_by_its_name_and_digest() -> None:
    file = Path("/somewhere/mine@home.py")
    source = Source.from_file(file, b"x = 1")
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
