"""nsabench explain"""

from __future__ import annotations

import json
from dataclasses import asdict

import click
from click.shell_completion import CompletionItem

from nsabench.cli import _options
from nsabench.output import explain


def _complete(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    return [
        CompletionItem(word, help=same_word[0].kind)
        for word, same_word in explain.meanings().items()
        if word.startswith(incomplete.lower())
    ]


@click.command("explain")
@click.argument("word", required=False, shell_complete=_complete)
@_options.as_json
def command(word: str | None, as_json: bool) -> None:
    """Say what a word in the output means: a status, verdict, check, column or op.

    Without a WORD: all of them, by kind.

    Example: nsabench explain implausible
    """
    if word is None:
        listed = [meaning for same_word in explain.meanings().values() for meaning in same_word]
    else:
        listed = explain.explain(word)
    if as_json:
        click.echo(json.dumps([asdict(meaning) for meaning in listed], indent=1))
    elif word is None:
        kinds = dict.fromkeys(meaning.kind for meaning in listed)
        for kind in kinds:
            click.echo(f"{kind}: " + ", ".join(m.word for m in listed if m.kind == kind))
    else:
        click.echo("\n\n".join(f"{m.word} ({m.kind})\n{_indented(m.text)}" for m in listed))


def _indented(text: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in text.splitlines())
