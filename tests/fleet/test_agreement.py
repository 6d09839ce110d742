"""What is asked of a run on two GPUs, held to the published runs of one code on two hosts."""

from __future__ import annotations

import json
import tarfile
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from nsabench.cli.compare import command
from tests.gpu.agreement import Agreement, of
from tests.output.compare.test_two_hosts import PACKED


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """As `nsabench compare --json` prints it."""
    folder = tmp_path_factory.mktemp("hosts")
    with tarfile.open(PACKED) as packed:
        packed.extractall(folder, filter="data")
    runs = [str(Path(folder, "rows-on-two-hosts", name)) for name in ("first", "second")]
    done = CliRunner().invoke(command, [*runs, "--intersection", "--json"])
    assert done.exit_code == 0, done.output
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_two_hosts_agree_in_verdicts_and_not_in_medians(compared: dict[str, Any]) -> None:
    found = of(compared)
    assert (found.verdicts, found.cells) == (222, 228)
    assert (found.medians, found.device_times, found.times) == (294, 705, 1064)
    assert not found.holds


def test_a_run_agrees_with_itself(compared: dict[str, Any]) -> None:
    cells = [
        {
            **cell,
            "runs": [cell["runs"][0]] * 2,
            "later": [{"ratio": cell["later"][0]["ratio"] and 1.0}],
        }
        for cell in compared["cells"]
    ]
    found = of({**compared, "cells": cells})
    assert found.holds and found.verdicts == found.cells and found.medians == found.times
    assert found.device_times == found.times
    other = {**cells[0]["runs"][0], "verdict": "of another kind"}
    assert found + found == Agreement(*(2 * n for n in astuple(found)))
    few = of({**compared, "cells": [{**c, "runs": [other, c["runs"][0]]} for c in cells]})
    assert not few.holds and few.verdicts == 0


def test_nothing_in_common_is_no_agreement(compared: dict[str, Any]) -> None:
    assert not of({**compared, "cells": []}).holds
    with pytest.raises(ValueError, match="3 runs are compared"):
        of({**compared, "runs": [{}, {}, {}]})
