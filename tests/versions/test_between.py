"""Runs under many versions: where something first got worse, found by measuring few of them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from nsabench.errors import UsageError
from nsabench.evidence.manifest import seal
from nsabench.model.vocabulary import Status
from nsabench.output.compare import compare, markdown, over_many, read
from nsabench.signing import load_signer
from nsabench.versions import between
from nsabench.versions.question import Question
from nsabench.versions.question import read as read_question
from nsabench.versions.tritons import Triton
from tests.runs import Made, make_run

VERSIONS = ("3.1.0", "3.2.0", "3.3.1", "3.4.0", "3.5.1", "3.6.0", "3.9.0")
GOOD = Made(ratio=lambda _: 1.5)


def broken(length: int) -> Made:
    """It does not compile at one length."""
    return replace(GOOD, status=lambda n: Status.COMPILE_ERROR if n == length else Status.OK)


def answered(folder: Path, breaks: str, how: Made) -> Question:
    """Runs under all versions; from one on they are as `how` says."""
    question = Question(("selection_rows",), folder)
    question.keep()
    worse = False
    for number, version in enumerate(VERSIONS):
        worse = worse or version == breaks
        made = replace(
            how if worse else GOOD,
            triton=version,
            seed=number,
            run_id=f"2026010{number + 1}T000000Z-abc12{number}",
        )
        seal(make_run(folder / f"triton-{version}", made), load_signer())
    return question


@pytest.mark.parametrize("first_bad", VERSIONS[1:])
@pytest.mark.parametrize("how", [broken(512), replace(GOOD, ratio=lambda _: 1.2)])
def test_the_first_worse_version_is_found(tmp_path: Path, first_bad: str, how: Made) -> None:
    question = answered(tmp_path / "v", first_bad, how)
    asked_for: list[str] = []

    class Counted(Question):
        def answer(self, triton: Triton, show: object) -> between.Measured:
            asked_for.append(triton.version)
            return super().answer(triton, print)  # all are there: nothing is started

    found = between.bisect(
        Counted(question.arguments, question.folder),
        tmp_path / "v" / "triton-3.1.0",
        tmp_path / "v" / "triton-3.9.0",
        lambda low, high: [Triton(v) for v in VERSIONS[1:-1]],
        print,
    )
    assert found.first_bad == first_bad
    assert found.last_good == VERSIONS[VERSIONS.index(first_bad) - 1]
    assert len(asked_for) <= 3  # of five
    assert f"Triton {first_bad}, and not in {found.last_good}" in found.sentence


def test_a_version_that_tells_nothing_is_neither_good_nor_bad(tmp_path: Path) -> None:
    """In the middle no control was caught, so its run decides nothing."""
    question = answered(tmp_path / "v", "3.5.1", broken(512))
    for version in ("3.3.1", "3.4.0"):
        folder = tmp_path / "v" / f"triton-{version}"
        shutil.rmtree(folder)
        made = replace(GOOD, triton=version, control_caught=False, run_id="20260201T000000Z-abc129")
        seal(make_run(folder, made), load_signer())
    found = between.bisect(
        question,
        tmp_path / "v" / "triton-3.1.0",
        tmp_path / "v" / "triton-3.9.0",
        lambda low, high: [Triton(v) for v in VERSIONS[1:-1]],
        print,
    )
    assert (found.last_good, found.first_bad) == ("3.2.0", "3.5.1")
    assert "3.4.0 tells nothing of what is worse" in found.sentence


def test_where_nothing_is_worse_there_is_nothing_to_seek(tmp_path: Path) -> None:
    question = answered(tmp_path / "v", "", GOOD)
    with pytest.raises(UsageError, match=r"nothing in .* is worse"):
        between.bisect(
            question,
            tmp_path / "v" / "triton-3.1.0",
            tmp_path / "v" / "triton-3.9.0",
            lambda low, high: [],
            print,
        )


def test_a_folder_of_another_question_is_refused(tmp_path: Path) -> None:
    Question(("selection_rows",), tmp_path / "v").keep()
    Question(("selection_rows",), tmp_path / "v").keep()  # the same goes on
    assert read_question(tmp_path / "v").arguments == ("selection_rows",)
    with pytest.raises(UsageError, match="asked for otherwise"):
        Question(("decode_step",), tmp_path / "v").keep()
    with pytest.raises(UsageError, match="does not say what its runs were asked for"):
        read_question(tmp_path)


def test_all_versions_in_one_table(tmp_path: Path) -> None:
    answered(tmp_path / "v", "3.4.0", broken(512))
    comparison = compare(read([tmp_path / "v" / f"triton-{v}" for v in VERSIONS]))
    [one] = over_many.breakages(comparison)
    assert (one.run, one.implementation, len(one.cells), one.stay) == (
        "triton-3.4.0",
        "mine",
        4,
        True,
    )
    assert one.sentence == (
        "mine of selection_rows broke in triton-3.4.0: 4 cells (compile_error), and stays so"
    )
    lines = over_many.lines(comparison)
    assert len(lines) == 16 and [line.differs for line in lines] == [True] * 4 + [False] * 12
    assert lines[0].texts[3:] == ("compile_error",) * 4
    assert all(text.startswith("= ") for text in lines[-1].texts[1:])
    text = markdown.render(comparison)
    assert one.sentence.replace("_", r"\_") in text or one.sentence in text
    # torch 2.11 belongs with 3.6, and whoever reads a column of another is told so
    assert "triton-3.9.0 (unpaired)" in text and "triton-3.6.0 (unpaired)" not in text


def test_what_is_mended_later_does_not_stay(tmp_path: Path) -> None:
    runs = [GOOD, broken(512), replace(GOOD, triton="3.7.1")]
    folders = [
        make_run(
            tmp_path / f"run{n}", replace(run, seed=n, run_id=f"2026010{n + 1}T000000Z-abc12{n}")
        )
        for n, run in enumerate(runs)
    ]
    [one] = over_many.breakages(compare(read(folders)))
    assert one.run == "run1" and not one.stay
