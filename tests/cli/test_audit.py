"""`nsabench audit` as a person reads it: the cause first, what is alike on one line."""

import re
from pathlib import Path

from click.testing import CliRunner

from nsabench.cli.audit import command

TABLE = Path(__file__).parents[1] / "data" / "reference" / "m4_rtx4090_dense.csv"


def lines(*options: str) -> list[str]:
    done = CliRunner().invoke(command, [str(TABLE), "--gpu", "RTX 4090", *options])
    assert done.exception is None, done.output
    words = " ".join(done.output.split())
    starts = r" (?=(?:wrong|implausible|inconclusive|note) \w+: )"
    return re.split(starts, words)


def test_the_cause_comes_first_after_the_columns() -> None:
    columns, cause, *_ = lines()
    assert columns.startswith("note columns: triton_ms is a candidate; sdpa_ms is a baseline; ")
    assert cause.startswith("wrong explanation: the baseline read the first 64 keys: ")


def test_what_is_alike_is_one_line_with_a_count() -> None:
    said = lines()
    [parity] = [line for line in said if line.startswith("wrong parity: ")]
    assert parity.startswith("wrong parity: in 20 cases; the last, N=1024 H=8 D=128 Dv=128 L=1024")
    assert len(said) == 6
    each = lines("--each")
    assert sum(line.startswith("wrong parity: ") for line in each) == 20
