"""Runs under many versions, in one folder and in one comparison."""

from dataclasses import replace

import pytest

from nsabench import versions
from nsabench.errors import UsageError
from nsabench.model.vocabulary import Status
from nsabench.output.compare import compare, document, read
from tests.runs import Made, make_run

VERSIONS = ("3.1.0", "3.2.0", "3.3.1", "3.4.0", "3.5.1", "3.6.0", "3.9.0")
GOOD = Made(ratio=lambda _: 1.5)
# This kernel does not compile at one length.
BROKEN = replace(GOOD, status=lambda n: Status.COMPILE_ERROR if n == 512 else Status.OK)


def make_runs(folder, made):
    return [
        make_run(folder / f"run{n}", replace(one, seed=n, run_id=f"2026010{n}T000000Z-abc12{n}"))
        for n, one in enumerate(made, 1)
    ]


def test_a_folder_with_other_arguments_is_refused(tmp_path):
    for _ in range(2):  # the same arguments are accepted again
        assert versions.measure(["selection_rows"], tmp_path / "v", [], print) == []
    with pytest.raises(UsageError, match="arguments"):
        versions.measure(["decode_step"], tmp_path / "v", [], print)
    with pytest.raises(UsageError, match=str(tmp_path)):
        versions.measure(["decode_step"], tmp_path, [], print)


def test_all_versions_in_one_comparison(tmp_path):
    made = [replace(BROKEN if v >= "3.4.0" else GOOD, triton=v) for v in VERSIONS]
    comparison = compare(read(make_runs(tmp_path, made)))
    broken = [len(comparison.changes(later)) for later in range(len(VERSIONS) - 1)]
    assert broken == [0, 0, 4, 4, 4, 4]
    text = document.to_markdown(comparison)
    assert text.index("changed in run3\n\nNone.") < text.index("| broke |")
    # torch 2.11 pins Triton 3.6, and the columns of other Tritons say so.
    assert "run7 (unpaired)" in text and "run6 (unpaired)" not in text
