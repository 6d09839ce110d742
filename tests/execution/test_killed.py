"""What was begun is journaled: a supervisor that was killed is not killed by the same once more."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from nsabench.errors import UsageError, VerificationFailed
from nsabench.evidence.manifest import verify
from nsabench.execution.chain import Sealer
from nsabench.execution.journal import Journal, read
from nsabench.execution.supervisor.killed import Killed
from nsabench.model.journal import Begun, Contents
from nsabench.model.vocabulary import PassName, Status
from tests.cli.conftest import Nsabench, command
from tests.cli.conftest import nsabench as nsabench
from tests.execution.test_chain import ME
from tests.runs import first_look
from tests.signing.test_secrecy import ONE

PARRICIDE = """
import os, signal
from nsabench import implementation
from nsabench.implementations.baselines.selection_rows import gqa

@implementation(op="selection_rows", name="mine", devices=("cpu", "cuda"))
def mine(q, k, v, *, sm_scale):
    os.kill(os.getppid(), signal.SIGKILL)
    return gqa(q, k, v, sm_scale=sm_scale)
"""


def begun(*names: str, implementation: str = "", phase: str = "parity") -> Begun:
    return Begun(
        pass_name=PassName.FIRST_LOOK,
        case_id="a",
        implementations=list(names),
        implementation=implementation,
        phase=phase,
    )


def test_a_kernel_that_kills_the_supervisor_is_not_run_again(
    tmp_path: Path, nsabench: Nsabench
) -> None:
    (tmp_path / "one.yaml").write_text(ONE)
    (tmp_path / "mine.py").write_text(PARRICIDE)
    run = tmp_path / "run"
    options = ("--device", "cpu", "--out", run, "--kernels", "mine.py", "--no-sandbox")
    killed = subprocess.run(command("all", "one.yaml", *options), cwd=tmp_path, check=False)
    assert killed.returncode == -signal.SIGKILL
    done = nsabench("all", "--resume", run)
    assert done.returncode == 1, done.stderr
    status = {r["implementation"]: r for r in pq.read_table(run / "records.parquet").to_pylist()}
    assert status["mine"]["status"] == Status.CRASHED
    assert status["mine"]["reason"].startswith(
        "nsabench itself was killed while it was measured (last during parity)"
    )
    assert status["sdpa_gqa"]["status"] == Status.OK
    assert verify(run).broken is None
    [death] = read(run / "journal.jsonl").killed
    assert (death.implementation, death.phase) == ("mine", "parity")


@pytest.mark.parametrize(
    ("deaths", "forgiven", "guilty", "unexplained"),
    [
        ([], 0, [], False),
        # Kernels could have killed it: who was named is not run again, a baseline only if alone.
        ([begun("base", "mine", implementation="mine")], 0, ["mine"], False),
        ([begun("base", "mine", implementation="base")], 0, [], True),
        ([begun("base", "mine", phase="timing")], 0, [], True),
        ([begun("base", "mine", phase="timing"), begun("mine")], 0, ["mine"], False),
        ([begun("base", "mine", phase="timing"), begun("base")], 0, ["base"], False),
        # They could not: it was somebody else, unless it happens again.
        ([begun("base", "mine", implementation="mine")], 1, [], False),
        ([begun("mine")], 1, [], False),
        ([begun("base", "mine", implementation="mine")] * 2, 1, ["mine"], False),
        ([begun("base", "mine", phase="timing")] * 2, 1, [], True),
        ([begun("base", "mine"), begun("mine")], 1, ["mine"], False),
    ],
)
def test_whom_deaths_speak_against(
    deaths: Sequence[Begun], forgiven: int, guilty: list[str], unexplained: bool
) -> None:
    killed = Killed(deaths, forgiven)
    assert killed.guilty(["base", "mine"], {"mine"}) == guilty
    assert killed.unexplained(guilty) is unexplained


def journal_of(path: Path) -> Journal:
    journal = Journal(path)
    journal.begin(Sealer(ME, "run", "a" * 64, ""))
    return journal


def kill(journal: Journal) -> None:
    """As a process ends that is killed: nothing of its own is run any more."""
    os.close(journal._file.fileno())


def test_what_was_begun_gives_way_and_outlives_a_killed_process(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = journal_of(path)
    for case_id in ("a", "b"):
        attempt = begun("mine", "base").model_copy(update={"case_id": case_id})
        journal.begin_attempt(attempt)
        journal.busy_with("parity", "mine")
        journal.busy_with("timing", "")
        if case_id == "a":
            journal.append(first_look(case_id="a"))
    kill(journal)
    contents = read(path)
    assert [(b.case_id, b.phase) for b in contents.killed] == [("b", "timing")]
    with closing(journal_of(path)) as resumed:
        assert len(resumed.contents.killed_in(PassName.FIRST_LOOK, "b")) == 1
        resumed.begin_attempt(begun("mine"))
    assert len(read(path).killed) == 1, "a process that ends by itself was not killed"
    kinds = [json.loads(line)["kind"] for line in path.read_bytes().splitlines()]
    assert kinds == ["sitting", "entry", "begun", "sitting"]


@pytest.mark.parametrize(
    ("foreign", "sentence"),
    [
        (b'{"kind":"entry","pass_name":"first_look","case_id":"x"}\n', "line 3 "),
        (b"rubbish\n", "journal.jsonl:3: not a line"),
        (b"no end of a line", "its length is not what was written"),
    ],
)
def test_what_something_else_wrote_is_told_at_once(
    tmp_path: Path, foreign: bytes, sentence: str
) -> None:
    path = tmp_path / "journal.jsonl"
    journal = journal_of(path)
    journal.append(first_look(case_id="a"))
    good = path.read_bytes()
    journal.begin_attempt(begun("mine", "base"))
    journal.busy_with("parity", "mine")
    path.write_bytes(good + foreign)
    with pytest.raises((VerificationFailed, UsageError)) as caught:
        journal.append(first_look(case_id="b"))
    journal.close()
    assert "while mine was measured (parity)" in str(caught.value)
    assert sentence in str(caught.value)
    assert path.read_bytes() == good + foreign, "it is left as it is, for whoever looks"
    if foreign.endswith(b"\n"):
        assert "start a new run" in caught.value.remedy
        with pytest.raises((VerificationFailed, UsageError)):
            Journal(path)
        return
    with closing(Journal(path)) as resumed:
        assert resumed.done(PassName.FIRST_LOOK) == {"a"}
    assert path.read_bytes() == good


def test_nothing_is_known_of_a_death_before_there_was_a_header() -> None:
    contents = Contents()
    contents.add(begun("mine"))
    assert Killed.of(contents, PassName.FIRST_LOOK, "a").forgiven == 0
    assert Killed.of(contents, PassName.SECOND_LOOK, "a").begun == []
