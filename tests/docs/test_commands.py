"""Each command has an example and options with help; commands that only read have `--json`; bash
completes words."""

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from nsabench.cli import group
from nsabench.cli._help import PANELS, SECTIONS, SUMMARIES
from nsabench.cli._options import Measuring, asked_again
from tests.commands import invoke

# Commands that may lack `--json`, because they write or change something.
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


def commands(found=group, name=""):
    if isinstance(found, click.Group):
        context = click.Context(found)
        for part in found.list_commands(context):
            command = found.get_command(context, part)
            assert command is not None
            yield from commands(command, f"{name} {part}".strip())
    else:
        yield name, found


@pytest.mark.parametrize(("name", "command"), list(commands()), ids=lambda x: str(x))
def test_every_command_has_an_example_that_it_would_accept(name, command):
    text = command.help or ""
    assert "Example: nsabench " in text, name
    example = " ".join(text.partition("Example: ")[2].split())
    words = example.removeprefix("nsabench ").partition(" >")[0].split()
    assert words[: len(name.split())] == name.split(), example
    options = {o for p in command.params for o in [*p.opts, *p.secondary_opts] if o[0] == "-"}
    own = [*words[: words.index("--")]] if "--" in words else words
    assert {w for w in own if w.startswith("--")} <= options, example


def test_the_summaries_are_short_and_those_of_the_commands():
    context = click.Context(group)
    for name, summary in SUMMARIES.items():
        command = group.get_command(context, name)
        assert command is not None
        assert (command.help or "").partition("\n\n")[0] == f"{summary}."
    for _, command in commands():
        assert len((command.help or "").partition("\n\n")[0].removesuffix(".")) <= 45


def test_the_help_shows_every_command_in_one_line_of_80_columns_and_imports_none():
    code = (
        "import sys\nfrom nsabench.cli import main\nsys.argv = ['nsabench', '--help']\n"
        "try:\n main()\nfinally:\n print(*sys.modules, file=sys.stderr)"
    )
    environment = {**os.environ, "COLUMNS": "80"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    lines = [line.strip() for line in done.stdout.splitlines()]
    for title, summaries in SECTIONS.items():
        start = lines.index(f"{title}:") + 1
        listed = [line.split(maxsplit=1) for line in lines[start : start + len(summaries)]]
        assert listed == [[name, summary] for name, summary in summaries.items()]
    heavy = {"numpy", "pyarrow", "pydantic", "rich", "torch", "cryptography", "nsabench.ops"}
    assert not heavy & set(done.stderr.split())


@pytest.mark.parametrize(("name", "command"), list(commands()), ids=lambda x: str(x))
def test_options_are_in_panels_with_a_metavar_and_a_phrase(name, command):
    context = click.Context(command)
    shown = command.get_help(context)
    for option in command.params:
        if isinstance(option, click.Option) and name != "completion":
            assert option.help and option.help[0].isupper() and len(option.help.split()) > 2, option
            record = option.get_help_record(context)
            assert record and "default: {" not in record[1], record
            assert option.make_metavar(context) not in ("TEXT", "PATH", "INTEGER", "FLOAT"), option
            panels = [p for p, names in PANELS.items() if option.name in names]
            assert len(panels) <= 1 and all(f"{p}:" in shown for p in panels), option


GIVEN = {
    "kernels": Path("k.py"), "ops_file": Path("o.py"), "where": ("D=64",), "only": ("mine",),
    "margin": 1.5, "timing": "full", "device": "cpu", "matrices": ("quick",), "no_sandbox": True,
    "verbose": True,
}  # fmt: skip


@pytest.mark.parametrize("name", ["versions", "fleet slurm", "fleet kubernetes", "fleet modal"])
def test_no_command_lists_an_option_that_it_does_not_pass_on(name):
    """These commands call `nsabench all` with the options that they were given."""
    listed = {p.name for p in dict(commands())[name].params} & set(GIVEN)
    assert {"where", "only", "kernels"} <= listed
    least = asked_again(Measuring())
    for option in listed:
        more = asked_again(Measuring(**{option: GIVEN[option]}))
        assert more != least, option


def test_whatever_reads_has_json():
    without = {
        name
        for name, command in commands()
        if not any("--json" in parameter.opts for parameter in command.params)
    }
    assert without <= WRITING


@pytest.fixture(scope="module")
def completion(tmp_path_factory):
    """Return a script for bash, and the variables with which bash finds nsabench."""
    script = tmp_path_factory.mktemp("bash") / "completion"
    script.write_text(invoke("completion", "bash").stdout)
    return script, {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["nsabench", "archive", "q"], {"query"}),
        (["nsabench", "compare", "--fail-on", ""], {"regression", "status"}),
        (["nsabench", "verify", "--req"], {"--require"}),
    ],
)
def test_completion_in_bash(completion, words, expected):
    script, environment = completion
    # Do the work of bash when the tab key is pressed after these words.
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
