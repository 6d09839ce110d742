"""The command line documents itself: an example for everything, JSON from whatever reads, and
completion in a real shell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from nsabench.cli import SECTIONS, group

# They measure, write or change something; what they make is read by the others.
WRITING = {
    "versions",
    "packages fetch",
    "init",
    "profile",
    "site",
    "completion",
    "key generate",
    "archive add",
    "fleet kubernetes",
    "fleet modal",
    "fleet slurm",
    "images build",
    "images lock",
    "images run",
}


def commands(found: click.Command = group, name: str = "") -> Iterator[tuple[str, click.Command]]:
    if isinstance(found, click.Group):
        for part, command in found.commands.items():
            yield from commands(command, f"{name} {part}".strip())
    else:
        yield name, found


@pytest.mark.parametrize(("name", "command"), list(commands()), ids=lambda x: str(x))
def test_every_command_has_an_example_that_it_would_accept(
    name: str, command: click.Command
) -> None:
    text = command.help or ""
    assert "Example: nsabench " in text, name
    example = " ".join(text.partition("Example: ")[2].split())
    words = example.removeprefix("nsabench ").partition(" >")[0].split()
    assert words[: len(name.split())] == name.split(), example
    options = {o for p in command.params for o in [*p.opts, *p.secondary_opts] if o[0] == "-"}
    own = [*words[: words.index("--")]] if "--" in words else words
    assert {w for w in own if w.startswith("--")} <= options, example


def test_the_help_shows_every_command_under_a_heading_in_a_short_line() -> None:
    listed = [name for names in SECTIONS.values() for name in names]
    assert sorted(listed) == sorted(group.commands)
    groups = [command for command in group.commands.values() if isinstance(command, click.Group)]
    for command in [*groups, *(command for _, command in commands())]:
        summary = (command.help or "").partition("\n\n")[0]
        assert len(summary.removesuffix(".")) <= 45, summary
    _, heading, shown = group.get_help(click.Context(group)).partition("Write a kernel:\n")
    assert heading and "..." not in shown, shown


def test_whatever_reads_has_json() -> None:
    without = {
        name
        for name, command in commands()
        if not any("--json" in parameter.opts for parameter in command.params)
    }
    assert without <= WRITING


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["nsabench", "comp"], {"compare", "completion"}),
        (["nsabench", "archive", "q"], {"query"}),
        (["nsabench", "compare", "--fail-on", ""], {"regression", "status"}),
        (["nsabench", "verify", "--req"], {"--require"}),
    ],
)
def test_completion_in_bash(tmp_path: Path, words: list[str], expected: set[str]) -> None:
    binary = Path(sys.executable).parent
    script = tmp_path / "completion"
    environment = {**os.environ, "PATH": f"{binary}:{os.environ['PATH']}"}
    made = subprocess.run(
        ["nsabench", "completion", "bash"],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    script.write_text(made.stdout)
    # What bash does when the tab key is pressed after these words.
    line = " ".join(f"'{word}'" for word in words)
    shell = (
        f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1};"
        "f=$(complete -p nsabench | sed 's/.*-F \\([^ ]*\\).*/\\1/');"
        f"$f nsabench '{words[-1]}' {words[-2]}; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", shell], capture_output=True, text=True, env=environment
    )
    assert set(done.stdout.split()) == expected, done.stderr


def test_the_reference_of_words_is_json_as_well(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nsabench", "explain", "out_of_memory", "--json"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    [meaning] = json.loads(done.stdout)
    assert meaning["kind"] == "status" and meaning["text"]
