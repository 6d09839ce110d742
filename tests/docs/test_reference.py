"""Reference pages made from the code are up to date, and the messages in troubleshooting.md
exist."""

import ast
import importlib.util
import json
import re
from pathlib import Path

import jsonschema
import pytest

from nsabench.output import programs
from nsabench.output.programs import CheckDocument

ROOT = Path(__file__).parents[2]


SOURCES = [
    ast.parse(path.read_text())
    for folder in ("nsabench", "kernels/nsa_kernels")
    for path in (ROOT / folder).rglob("*.py")
]
VARIABLE = re.compile(r"[A-Z][A-Z0-9]+(_[A-Z0-9]+)+_?")
# Texts that look like environment variables, but are words of SQL, Docker, CUDA and
# /etc/os-release.
OTHERS = {"ARROW_SCAN", "LOCK_SHA256", "PCI_BUS_ID", "PRETTY_NAME"}


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGES = (
    *("matrices", "columns", "commands", "glossary", "library"),
    *("python", "environment", "files"),
)


def test_every_generated_page_is_tested(generate):
    assert set(PAGES) == set(generate.PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_it_is_what_the_code_says(generate, name):
    text = (ROOT / "docs" / "reference" / f"{name}.md").read_text()
    assert text == getattr(generate, name)(), "run `python docs/generate.py`"


def variables():
    """Return the environment variables that the code names."""
    nodes = [node for tree in SOURCES for node in ast.walk(tree)]
    identifiers = {n.id for n in nodes if isinstance(n, ast.Name)}
    identifiers |= {n.arg for n in nodes if isinstance(n, ast.arg | ast.keyword) and n.arg}
    texts = {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    named = {text for text in texts if VARIABLE.fullmatch(text)}
    return named - identifiers - OTHERS | set(_asked(nodes))


def _asked(nodes):
    """Yield the names in `os.environ.get(NAME)`."""
    for node in nodes:
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "os.environ.get":
            value = node.args[0]
            if isinstance(value, ast.Constant):
                yield value.value


def test_every_environment_variable_is_documented():
    text = (ROOT / "docs" / "reference" / "environment.md").read_text()
    documented = set(re.findall(r"^\| `([A-Z0-9_]+)` \|", text, re.M))
    named = variables()
    assert len(named) > 30
    assert documented == named


def test_the_schema_of_json_is_published_and_complete():
    published = json.loads((ROOT / "docs" / "reference" / "json.schema.json").read_text())
    assert published == programs.schema(), "run `python docs/generate.py`"
    jsonschema.Draft202012Validator.check_schema(published)
    refused = CheckDocument(exit_code=2, error="no such file", remedy="give another.")
    jsonschema.validate(refused.model_dump(mode="json"), published)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"command": "check", "exit_code": 0}, published)


def test_messages_in_troubleshooting_are_those_of_the_code():
    text = (ROOT / "docs" / "how-to" / "troubleshooting.md").read_text()
    messages = re.findall(r"^\| `([^`]+)` \|", text, re.M)
    source = "".join(path.read_text() for path in (ROOT / "nsabench").rglob("*.py"))
    # A sentence may be split over lines of source.
    joined = re.sub(r'"\s*\n\s*f?"', "", source)
    assert len(messages) > 15
    # `…` stands for what differs from run to run.
    parts = [part.strip() for message in messages for part in message.split("…")]
    assert [part for part in parts if part not in joined] == []
