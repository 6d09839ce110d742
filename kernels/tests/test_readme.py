"""The examples of the kernels' README run, in one session. Every other block says what it needs."""

import re
from pathlib import Path

import nsa_kernels
import pytest

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"<!-- (runnable|needs):? *([^>]*?) *-->\s*\n```(\w+)\n(.*?)\n```", re.S)
NEEDS = {"a fresh environment", "a GPU"}


@pytest.fixture(autouse=True)
def _counts_of_their_own():
    nsa_kernels.reset_routing_report()


def test_the_examples_run():
    session = {}
    examples = [text for kind, _, _, text in BLOCK.findall(README.read_text()) if kind != "needs"]
    assert len(examples) >= 6
    for text in examples:
        exec(compile(text, str(README), "exec"), session)


def test_every_block_is_run_or_says_what_it_needs():
    text = README.read_text()
    marked = BLOCK.findall(text)
    assert len(marked) == len(re.findall(r"^```\w", text, re.M))
    assert {says for kind, says, _, _ in marked if kind == "needs"} <= NEEDS


def test_every_public_name_is_there():
    text = README.read_text()
    assert not [name for name in nsa_kernels.__all__ if name not in text]


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)", README.read_text()):
        assert "://" in target or (README.parent / target).exists(), target
