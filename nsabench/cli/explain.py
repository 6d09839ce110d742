"""nsabench explain"""

from __future__ import annotations

import json
from dataclasses import asdict

import click
from click.shell_completion import CompletionItem

from nsabench.cli import _options
from nsabench.cli._say import say
from nsabench.output import explain


def _complete(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    return [
        CompletionItem(word, help=of_word[0].kind)
        for word, of_word in explain.meanings().items()
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
        meanings = [meaning for known in explain.meanings().values() for meaning in known]
    else:
        meanings = explain.explain(word)
    if as_json:
        say(json.dumps([asdict(meaning) for meaning in meanings], indent=1))
    elif word is None:
        kinds = dict.fromkeys(meaning.kind for meaning in meanings)
        for kind in kinds:
            say(f"{kind}: " + ", ".join(m.word for m in meanings if m.kind == kind))
    else:
        say("\n\n".join(f"{m.word} ({m.kind})\n{_indented(m.text)}" for m in meanings))


def _indented(text: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in text.splitlines())
