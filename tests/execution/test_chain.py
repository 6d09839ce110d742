"""Nobody adds, changes or reorders lines of a journal who has not the key of its signer."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from nsabench.errors import VerificationFailed
from nsabench.execution.chain import Sealer, link
from nsabench.execution.journal import Journal, examine
from nsabench.signing import Signer
from nsabench.signing.signer import RUN_KEY, make_run_key, read_run_key
from tests.runs import first_look


def signer() -> Signer:
    return Signer(Ed25519PrivateKey.generate(), ephemeral=False)


ME = signer()


def sealer(by: Signer = ME, run_id: str = "run") -> Sealer:
    return Sealer(by, run_id, "a" * 64, "")


def sit(path: Path, *case_ids: str, by: Signer = ME) -> None:
    """A process that measures these cases and ends."""
    with closing(Journal(path)) as journal:
        journal.begin(sealer(by))
        for case_id in case_ids:
            journal.append(first_look(case_id=case_id))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "journal.jsonl"
    sit(path, "a", "b")
    sit(path, "c", "d")
    return path


def test_a_journal_says_who_measured_it(path: Path) -> None:
    contents, origin = examine(path)
    assert [entry.case_id for entry in contents.entries] == ["a", "b", "c", "d"]
    assert origin is not None
    assert (origin.keyid, origin.ephemeral) == (ME.keyid, False)
    assert (origin.sittings, origin.lines) == (2, 6)
    assert origin.end == link(path.read_bytes().split(b"\n")[-2])
    one, other = contents.sittings
    assert one.key != other.key, "a key of a process that has ended seals nothing any more"


def test_no_secret_is_in_it(path: Path) -> None:
    assert isinstance(ME.key, Ed25519PrivateKey)
    secret = ME.key.private_bytes_raw()
    text = path.read_bytes()
    assert secret not in text and base64.b64encode(secret)[:40] not in text


def test_a_journal_of_an_earlier_version_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with closing(Journal(path)) as journal:
        journal.append(first_look(case_id="a"))
    assert set(json.loads(path.read_text())).isdisjoint({"seal", "previous"})
    assert examine(path)[1] is None


Lines = list[bytes]


def forge(lines: Lines, *, after: int) -> Lines:
    """What whoever killed the run can write: it has its public parts, and keys of its own."""
    forged = Sealer(signer(), "run", "a" * 64, "")
    return [*lines, forged.seal(first_look(case_id="e"), link(lines[after]))]


def unsealed(lines: Lines) -> Lines:
    return [*lines, first_look(case_id="e").model_dump_json().encode()]


def of_a_stranger(lines: Lines) -> Lines:
    stranger = sealer(signer())
    return [*lines, stranger.seal(stranger.sitting(link(lines[-1])), link(lines[-1]))]


def in_my_name(lines: Lines) -> Lines:
    """A stranger's sitting that says that I vouch for it."""
    stranger = sealer(signer())
    sitting = stranger.sitting(link(lines[-1]))
    mine = json.loads(lines[0])["certificate"]
    sitting = sitting.model_copy(
        update={"certificate": sitting.certificate.model_copy(update=mine)}
    )
    return [*lines, stranger.seal(sitting, link(lines[-1]))]


def stripped(lines: Lines) -> Lines:
    """The first lines without seals, as anybody could write them."""
    plain = [json.loads(line) for line in lines[1:3]]
    for line in plain:
        del line["seal"], line["previous"]
    return [*(json.dumps(line).encode() for line in plain), *lines[3:]]


def altered(old: bytes, new: bytes) -> Callable[[Lines], Lines]:
    return lambda lines: [line.replace(old, new) for line in lines]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (altered(b'"case_id":"b"', b'"case_id":"x"'), "line 3 is not what was measured"),
        (altered(b'"run_id":"run"', b'"run_id":"rum"'), "line 1 is not vouched for by the key"),
        (altered(b'"ephemeral":false', b'"ephemeral":true'), "line 1 is not vouched for"),
        (lambda lines: [lines[0], *lines[2:]], "line 2 does not follow the line before it"),
        (lambda lines: [*lines[:1], lines[2], lines[1], *lines[3:]], "line 2 does not follow"),
        (lambda lines: [*lines[:2], lines[1], *lines[2:]], "line 3 does not follow"),
        (lambda lines: lines[3:], "line 1 does not follow"),
        (lambda lines: lines[1:], "line 1 has a seal, and no sitting before it"),
        (lambda lines: forge(lines, after=-1), "line 7 is not what was measured"),
        (lambda lines: forge(lines, after=-2), "line 7 does not follow"),
        (unsealed, "line 7 does not follow"),
        (of_a_stranger, "line 7 was measured in the name of the key"),
        (in_my_name, "line 7 is not vouched for by the key"),
        (stripped, "line 3 begins a chain behind lines without one"),
    ],
)
def test_what_was_done_to_it(path: Path, change: Callable[[Lines], Lines], sentence: str) -> None:
    lines = path.read_bytes().split(b"\n")[:-1]
    path.write_bytes(b"".join(line + b"\n" for line in change(lines)))
    with pytest.raises(VerificationFailed, match=sentence):
        examine(path)
    with pytest.raises(VerificationFailed, match=sentence):
        Journal(path)


def test_every_byte_of_a_line_counts(path: Path) -> None:
    whole = path.read_bytes()
    begin = whole.index(b"\n") + 1
    for offset in range(begin, whole.index(b"\n", begin), 7):
        changed = bytearray(whole)
        changed[offset] ^= 1
        path.write_bytes(changed)
        with pytest.raises(Exception, match=r"journal\.jsonl:\d|line \d"):
            examine(path)


def test_a_torn_line_is_forgiven_and_the_chain_goes_on(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    sit(path, "d")
    contents, origin = examine(path)
    assert [entry.case_id for entry in contents.entries] == ["a", "b", "c", "d"]
    assert origin is not None and origin.sittings == 3


def test_the_key_of_a_run_is_kept_in_its_folder(tmp_path: Path) -> None:
    assert read_run_key(tmp_path) is None
    made = make_run_key(tmp_path)
    kept = read_run_key(tmp_path)
    assert made.ephemeral and kept is not None and kept.keyid == made.keyid
    assert (tmp_path / RUN_KEY).stat().st_mode & 0o777 == 0o600
