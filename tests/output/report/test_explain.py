"""Every word that the output uses can be explained, and by nothing but the code itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nsabench.assessment import checks
from nsabench.assessment.checks import Effect
from nsabench.assessment.tables import RECORDS, SAMPLES
from nsabench.errors import UsageError
from nsabench.machine.doctor.codes import codes
from nsabench.model.vocabulary import Catch, Role, Status, Verdict
from nsabench.output.explain import explain, meanings

DOCTOR = Path(__file__).parents[2] / "machine" / "doctor" / "test_checks.py"


def test_every_word_has_a_meaning() -> None:
    words = [w.value for words in (Status, Verdict, Role, Effect, Catch) for w in words]
    words += [c.name for c in (*RECORDS, *SAMPLES)]
    words += list(checks.all_checks())
    words += list(codes())
    for word in words:
        assert all(meaning.text for meaning in explain(word)), word


def test_words_stay_plain_strings_with_a_meaning() -> None:
    assert Status("ok") is Status.OK
    assert f"{Status.OK}" == "ok"
    assert Status.OK.meaning


def test_a_word_with_two_meanings_has_both() -> None:
    assert {m.kind for m in explain("implausible")} == {"status", "effect of a finding"}


def test_an_unknown_word_names_its_neighbours() -> None:
    with pytest.raises(UsageError) as refused:
        explain("implausable")
    assert "implausible" in refused.value.remedy
    assert "implausable" not in meanings()


def test_every_problem_that_the_doctor_reports_can_be_looked_up() -> None:
    """The codes that its tests see are all known here, each with a remedy."""
    seen = set(re.findall(r'"((?:gpu|driver|torch|cpu)_[a-z_]+)"', DOCTOR.read_text()))
    explained = {word for word in seen if word in meanings()}
    assert len(explained) > 20
    for code in codes():
        [meaning] = explain(code)
        assert meaning.kind == "problem of a machine"
        assert re.search(r"^.{15,}\nremedy: .", meaning.text), meaning.text


def test_an_op_of_earlier_runs_says_what_took_its_place() -> None:
    [meaning] = explain("decode")
    assert meaning.kind == "op of earlier runs"
    assert "decode_selected" in meaning.text and "decode_step" in meaning.text
