"""References made from the code are up to date, and the messages that are explained exist."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["matrices", "columns", "commands", "glossary", "library"])
def test_it_is_what_the_code_says(name: str) -> None:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec and spec.loader
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    text = (ROOT / "docs" / "reference" / f"{name}.md").read_text()
    assert text == getattr(generate, name)(), "run `python docs/generate.py`"


def test_messages_in_troubleshooting_are_those_of_the_code() -> None:
    text = (ROOT / "docs" / "how-to" / "troubleshooting.md").read_text()
    messages = re.findall(r"^\| `([^`]+)` \|", text, re.M)
    source = "".join(path.read_text() for path in (ROOT / "nsabench").rglob("*.py"))
    # A sentence may be split over lines of source.
    joined = re.sub(r'"\s*\n\s*f?"', "", source)
    assert len(messages) > 15
    # `…` stands for what differs from run to run.
    parts = [part.strip() for message in messages for part in message.split("…")]
    assert [part for part in parts if part not in joined] == []
