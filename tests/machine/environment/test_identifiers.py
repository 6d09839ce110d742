"""What identifies a machine leaves this process only as a keyed hash."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from nsabench.errors import UsageError
from nsabench.machine.environment.identifiers import SALT_VARIABLE, Redactor, read_salt


def test_equal_identifiers_are_equal_within_a_process_and_differ_by_kind() -> None:
    a, b = Redactor(plain=False), Redactor(plain=False)
    assert a.identifier("serial", "123") == b.identifier("serial", "123")
    assert a.identifier("serial", "123") != a.identifier("serial", "124")
    assert a.identifier("serial", "123") != a.identifier("uuid", "123")
    assert a.kind == "run"


def test_a_salt_file_links_runs_and_another_does_not(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"1" * 32)
    two.write_bytes(b"2" * 32)

    def identifier(file: Path) -> str | None:
        redactor = Redactor.from_variables({SALT_VARIABLE: str(file)}, plain=False)
        assert redactor.kind == "shared"
        return redactor.identifier("serial", "123")

    assert identifier(one) == identifier(one) != identifier(two)
    assert identifier(one) != Redactor(plain=False).identifier("serial", "123")


def test_plain_keeps_identifiers(plain: Redactor) -> None:
    assert plain.identifier("serial", "123") == "123"
    assert plain.kind == "plain"


@pytest.mark.parametrize("value", [None, ""])
def test_nothing_stays_nothing(redactor: Redactor, value: str | None) -> None:
    assert redactor.identifier("serial", value) is None


def test_a_bad_salt_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_salt(tmp_path / "missing")
    short = tmp_path / "short"
    short.write_bytes(b"x")
    with pytest.raises(UsageError, match="has 1 bytes") as caught:
        read_salt(short)
    assert "head -c 32" in caught.value.remedy


def test_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setattr(socket, "gethostname", lambda: "analytical-engine")
    redactor = Redactor(plain=False)
    assert redactor.text("/home/ada/x:/home/ada") == "~/x:~"
    assert redactor.text("/home/adam/x") == "/home/adam/x"
    assert redactor.text("https://ada:secret@host/x") == "https://redacted@host/x"
    uuid = "GPU-11111111-2222-3333-4444-555555555555"
    told = redactor.text(f"{uuid},on analytical-engine")
    assert "1111" not in told and "engine" not in told
    assert redactor.identifier("uuid", uuid) in told.split(",")
    assert Redactor(plain=True).text("https://ada:secret@host") == "https://redacted@host"
