"""Who is looked at from outside has one set of inputs at a time."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from nsabench.execution.protocol import Sheet
from nsabench.execution.supervisor.turnstile import Papers, Turnstile, move

SETS = 3
ANSWERS = [[Sheet(name="output", dtype="float16", shape=[2], offset=4 * i)] for i in range(SETS)]


@pytest.fixture
def there(tmp_path: Path) -> Papers:
    return Papers(tmp_path, "there", SETS)


@pytest.fixture
def turnstile(tmp_path: Path, there: Papers) -> Iterator[Turnstile]:
    posed = Papers(tmp_path, "posed", SETS)
    for index in range(SETS):
        posed.of(index)[0].write_bytes(b"%d" % index)
    moves = [list(zip(posed.of(i), there.of(i), strict=True)) for i in range(SETS)]
    with closing(Turnstile(there, moves, ANSWERS, posed.outputs)) as made:
        move(moves[0])
        made.open()
        yield made


def ask(there: Papers) -> None:
    """As a worker does."""
    with Path(f"{there.turns}.asked").open("wb", buffering=0) as asked:
        asked.write(b"\n")
    given = os.open(f"{there.turns}.given", os.O_RDONLY)
    assert select.select([given], [], [], 30)[0], "no answer"
    os.read(given, 1)
    os.close(given)


def here(there: Papers) -> list[bool]:
    return [there.of(index)[0].exists() for index in range(SETS)]


def test_the_next_is_there_when_it_was_asked_for(turnstile: Turnstile, there: Papers) -> None:
    there.outputs.write_bytes(b"\0" * 12)
    assert here(there) == [True, False, False]
    ask(there)
    assert here(there) == [True, True, False] and turnstile.given == 2
    ask(there)
    assert here(there) == [True, True, True] and turnstile.given == SETS


def test_an_answer_counts_as_it_was_when_the_next_was_asked_for(
    turnstile: Turnstile, there: Papers
) -> None:
    there.outputs.write_bytes(b"one.\0\0\0\0\0\0\0\0")
    ask(there)
    there.outputs.write_bytes(b"late" + b"two." + b"last")
    ask(there)
    there.outputs.write_bytes(b"late" * SETS)
    assert (there.folder / "posed.out").read_bytes() == b"one.two."
    assert (turnstile.bytes_taken, turnstile.fault, turnstile.trouble) == (8, "", "")


def test_an_answer_that_is_cut_is_a_fault(turnstile: Turnstile, there: Papers) -> None:
    """Of outputs that were empty until all was asked for nothing would be taken before the end."""
    there.outputs.write_bytes(b"")
    ask(there)
    ask(there)
    there.outputs.write_bytes(b"late" * SETS)
    assert turnstile.fault and turnstile.bytes_taken == 0


def test_outputs_that_are_elsewhere_are_a_fault_and_nobody_waits(
    turnstile: Turnstile, there: Papers
) -> None:
    there.outputs.symlink_to("/dev/zero")
    ask(there)
    ask(there)
    assert turnstile.fault and turnstile.bytes_taken == 0
