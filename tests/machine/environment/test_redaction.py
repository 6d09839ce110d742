"""Text that leaves this machine names neither the machine nor its user."""

import socket

import pytest

from nsabench.machine.environment.identity import redact


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("/home/ada/x:/home/ada", "~/x:~"),
        ("/home/adam/x", "/home/adam/x"),
        ("https://ada:secret@host/x", "https://redacted@host/x"),
        ("GPU-11111111-2222-3333-4444-555555555555,1", "GPU-redacted,1"),
        ("on analytical-engine", "on redacted"),
    ],
)
def test_text(monkeypatch, text, redacted):
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setattr(socket, "gethostname", lambda: "analytical-engine")
    assert redact(text) == redacted
