"""The journal forgives a torn last line, and nothing else."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from nsabench.errors import UsageError
from nsabench.journal import Entry, Journal, read


def entry(case_id: str) -> Entry:
    return Entry(case_id=case_id, outcomes=[])


def written(path: Path, *case_ids: str) -> bytes:
    with closing(Journal(path)) as journal:
        for case_id in case_ids:
            journal.append(entry(case_id))
    return path.read_bytes()


def test_every_torn_end_is_forgiven(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    whole = written(path, "a", "b")
    second = whole.index(b"\n") + 1
    for cut in range(second + 1, len(whole)):
        path.write_bytes(whole[:cut])
        assert [e.case_id for e in read(path).entries] == ["a"]
        with closing(Journal(path)) as journal:
            assert journal.done == {"a"}
            journal.append(entry("b"))
        assert path.read_bytes() == whole


def test_a_broken_line_in_the_middle_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    whole = written(path, "a", "b")
    path.write_bytes(whole.replace(b'"case_id":"a"', b'"case_id":"a'))
    with pytest.raises(UsageError, match=r"journal\.jsonl:1: not a line"):
        read(path)


def test_a_whole_but_foreign_last_line_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(written(path, "a") + b"{}\n")
    with pytest.raises(UsageError, match=":2:"):
        Journal(path)
